package packages

import (
	"strconv"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	imagepinSocket   = "/run/imagepin/imagepin.sock"
	containerdSocket = "/run/containerd/containerd.sock"
)

// TestStandalonePackage installs the deb beside a stock containerd, runs the units, a pull and a pod, and purges it.
func TestStandalonePackage(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	ref := n.push("team/app:v1")
	n.Run("ctr -n k8s.io version")
	before := n.files()

	n.install(packaged(t, "imagepin_*_{arch}.deb"))
	if out := n.Run("systemd-analyze verify --man=no imagepin.service imagepin.socket"); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	if out, _ := n.Try(n.ctx, "systemctl is-enabled imagepin.service imagepin.socket || systemctl is-active imagepin.service imagepin.socket"); out != "disabled\ndisabled\ninactive\ninactive\n" {
		t.Errorf("after the installation: %q", out)
	}
	if mode := n.Run("stat -c '%a %U' /etc/imagepin/config.toml"); mode != "600 root\n" {
		t.Errorf("the configuration is %q", mode)
	}
	n.Run("imagepin config check /etc/imagepin/config.toml")
	n.Run("gzip -dc /usr/share/man/man1/imagepin-serve.1.gz | grep -q imagepin.serve")
	n.Run(`. /usr/share/bash-completion/completions/imagepin && complete -p imagepin`)

	n.Run("systemctl enable --now imagepin.socket imagepin.service")
	if out := n.Run("systemctl show -p ActiveState,SubState,StatusText imagepin.service"); !strings.Contains(out, "ActiveState=active\nSubState=running\n") {
		t.Errorf("the service is %s", out)
	}
	modes := n.Run("stat -c '%a %U:%G %n' /run/imagepin /run/imagepin/imagepin.sock /var/lib/imagepin /var/lib/imagepin/node.key")
	want := "700 root:root /run/imagepin\n600 root:root /run/imagepin/imagepin.sock\n700 root:root /var/lib/imagepin\n600 root:root /var/lib/imagepin/node.key\n"
	if modes != want {
		t.Errorf("modes:\n%s\nwant:\n%s", modes, want)
	}
	if l := n.listeners("imagepin.service"); l != nil {
		t.Errorf("it listens on TCP: %q", l)
	}
	n.unreachable(imagepinSocket)

	n.Run("imagepin --address " + imagepinSocket + " pull " + ref)
	if out := n.Run("imagepin --address " + imagepinSocket + " images"); !strings.Contains(out, ref) || !strings.Contains(out, "ready") {
		t.Errorf("imagepin images:\n%s", out)
	}
	p := n.runPod(imagepinSocket, "first", ref)

	// A reload is heeded.
	n.Run(`sed -i 's/# version_consistency = "off"/version_consistency = "node"/' /etc/imagepin/config.toml && systemctl reload imagepin`)
	n.Eventually("imagepin --address " + imagepinSocket + " inspect " + ref + " | grep 'version_consistency node'")

	// A restart keeps the socket.
	inode := n.Run("stat -c %i " + imagepinSocket)
	n.Run("systemctl restart imagepin.service")
	if now := n.Run("stat -c %i " + imagepinSocket); now != inode {
		t.Errorf("the socket was inode %s and is %s", inode, now)
	}
	n.runs(imagepinSocket, p)

	// A connection starts it.
	n.Run("systemctl stop imagepin.service")
	if _, err := n.Try(n.ctx, "systemctl is-active --quiet imagepin.service"); err == nil {
		t.Fatal("it runs although it was stopped")
	}
	n.runs(imagepinSocket, p)
	n.Run("systemctl is-active --quiet imagepin.service")

	// It makes the socket where systemd does not.
	n.Run("systemctl stop imagepin.socket imagepin.service && systemctl start imagepin.service")
	if mode := n.Run("stat -c '%a %U:%G' " + imagepinSocket); mode != "600 root:root\n" {
		t.Errorf("the socket is %s", mode)
	}
	n.runs(imagepinSocket, p)

	n.removePod(imagepinSocket, p)
	n.Run("imagepin --address " + imagepinSocket + " uninstall --yes")
	n.Run("dpkg --purge imagepin")
	n.Run("rm /tmp/*.deb")
	if diff := difference(before, n.files()); diff != nil {
		t.Errorf("after the purge:\n%s", strings.Join(diff, "\n"))
	}
	if out := n.Run("ctr -n k8s.io images ls; ctr namespaces ls"); strings.Contains(out, "io.imagepin") || strings.Contains(out, "\nimagepin") {
		t.Errorf("in containerd's metadata:\n%s", out)
	}
	// What it pulled is containerd's, and runs without it.
	list, err := cri.NewImageServiceClient(n.dial(containerdSocket)).ImageStatus(n.ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	if err != nil || list.Image == nil {
		t.Errorf("stock containerd has %v, %v", list, err)
	}
	n.removePod(containerdSocket, n.runPod(containerdSocket, "second", ref))
}

// TestRemoveKeepsConfiguration: dpkg --remove is not --purge.
func TestRemoveKeepsConfiguration(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	deb := packaged(t, "imagepin_*_{arch}.deb")
	n.install(deb)
	n.Run("echo '# mine' >>/etc/imagepin/config.toml && systemctl enable --now imagepin.service")
	n.Run("dpkg --remove imagepin")
	if out, err := n.Try(n.ctx, "systemctl is-active imagepin.service"); err == nil {
		t.Errorf("after the removal the service is %s", out)
	}
	key := n.Run("sha256sum /var/lib/imagepin/node.key")
	n.install(deb)
	n.Run("grep -q '^# mine' /etc/imagepin/config.toml && systemctl start imagepin.service")
	if now := n.Run("sha256sum /var/lib/imagepin/node.key"); now != key {
		t.Errorf("the node's key was %s and is %s", key, now)
	}
}

// TestUpgradeRestarts: an upgrade leaves the service as it was, running or not.
func TestUpgradeRestarts(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	deb := packaged(t, "imagepin_*_{arch}.deb")
	n.install(deb)
	n.install(deb)
	if _, err := n.Try(n.ctx, "systemctl is-active --quiet imagepin.service"); err == nil {
		t.Error("an upgrade started the service")
	}
	n.Run("systemctl start imagepin.service")
	pid := n.mainPID("imagepin.service")
	n.install(deb)
	n.Run("systemctl is-active --quiet imagepin.service")
	if now := n.mainPID("imagepin.service"); now == pid {
		t.Errorf("after the upgrade it is still process %s", pid)
	}
}

// unreachable fails if a user other than root can connect to a socket or read what is beside it.
func (n *stockNode) unreachable(socket string) {
	n.t.Helper()
	const as = "setpriv --reuid 65534 --regid 65534 --clear-groups "
	if out, err := n.Try(n.ctx, as+"imagepin --address "+socket+" --timeout 5s images"); err == nil || !strings.Contains(out, "permission denied") {
		n.t.Errorf("nobody can speak to %s: %v, %s", socket, err, out)
	}
	for _, path := range []string{"/etc/imagepin/config.toml", "/var/lib/imagepin/node.key"} {
		if _, err := n.Try(n.ctx, as+"cat "+path); err == nil {
			n.t.Errorf("nobody can read %s", path)
		}
	}
}

func (n *stockNode) mainPID(unit string) string {
	n.t.Helper()
	return strings.TrimSpace(n.Run("systemctl show --value -p MainPID " + unit))
}

// listeners are the TCP sockets that a service listens on.
func (n *stockNode) listeners(unit string) []string {
	n.t.Helper()
	sockets := n.Run("readlink /proc/" + n.mainPID(unit) + "/fd/*")
	var found []string
	for line := range strings.Lines(n.Run("cat /proc/net/tcp /proc/net/tcp6")) {
		// sl local_address rem_address st … inode; state 0A is LISTEN.
		f := strings.Fields(line)
		if len(f) > 9 && f[3] == "0A" && strings.Contains(sockets, "socket:["+f[9]+"]") {
			found = append(found, f[1])
		}
	}
	return found
}

// TestListenersAreSeen makes sure that the test above can fail.
func TestListenersAreSeen(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	n.install(packaged(t, "imagepin_*_{arch}.deb"))
	n.Run(`printf '[metrics]\naddress = "127.0.0.1:0"\n' >>/etc/imagepin/config.toml && systemctl start imagepin.service`)
	l := n.listeners("imagepin.service")
	if len(l) != 1 || !strings.HasPrefix(l[0], "0100007F:") {
		t.Errorf("with a metrics address it listens on %q", l)
	}
	if port, err := strconv.ParseUint(l[0][9:], 16, 16); err != nil || port == 0 {
		t.Errorf("port %q, %v", l[0], err)
	}
}

// TestHardening: what the unit gives up is what systemd says that it gives up, and nothing of it has been lost on the way.
func TestHardening(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	n.install(packaged(t, "imagepin_*_{arch}.deb"))
	// 0 is no exposure, 10 is all of it.
	n.Run("systemd-analyze security --offline=yes --threshold=20 --no-pager imagepin.service")
	n.Run("systemctl start imagepin.service")
	process := "/proc/" + n.mainPID("imagepin.service")
	status := n.Run("cat " + process + "/status")
	for _, want := range []string{"CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"} {
		if !strings.Contains(status, want) {
			t.Errorf("the process has no %q:\n%s", want, status)
		}
	}
	for line := range strings.Lines(n.Run("cat " + process + "/mountinfo")) {
		f := strings.Fields(line)
		if f[4] == "/" && !strings.HasPrefix(f[5], "ro") || f[4] == "/etc" && !strings.HasPrefix(f[5], "ro") {
			t.Errorf("it can write to %s: %s", f[4], f[5])
		}
	}
	if env := n.Run("tr '\\0' '\\n' <" + process + "/environ | cut -d= -f1 | sort | tr '\\n' ' '"); strings.Contains(strings.ToUpper(env), "PASS") || strings.Contains(env, "TOKEN") {
		t.Errorf("its environment has %s", env)
	}
}
