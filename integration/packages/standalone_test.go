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

// TestStandalonePackage installs the deb beside stock containerd, starts its units, runs a pod, and purges the deb.
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
		t.Errorf("units after the installation: got %q, want them disabled and inactive", out)
	}
	if mode := n.Run("stat -c '%a %U' /etc/imagepin/config.toml"); mode != "600 root\n" {
		t.Errorf("mode and owner of the configuration: got %q, want 600 root", mode)
	}
	n.Run("imagepin config check --serve /etc/imagepin/config.toml")
	n.Run("gzip -dc /usr/share/man/man1/imagepin-serve.1.gz | grep -q imagepin.serve")
	n.Run(`. /usr/share/bash-completion/completions/imagepin && complete -p imagepin`)

	n.Run("systemctl enable --now imagepin.socket imagepin.service")
	if out := n.Run("systemctl show -p ActiveState,SubState,StatusText imagepin.service"); !strings.Contains(out, "ActiveState=active\nSubState=running\n") {
		t.Errorf("got service state %s, want active and running", out)
	}
	modes := n.Run("stat -c '%a %U:%G %n' /run/imagepin /run/imagepin/imagepin.sock /var/lib/imagepin /var/lib/imagepin/node.key")
	want := "700 root:root /run/imagepin\n600 root:root /run/imagepin/imagepin.sock\n700 root:root /var/lib/imagepin\n600 root:root /var/lib/imagepin/node.key\n"
	if modes != want {
		t.Errorf("got modes:\n%s\nwant:\n%s", modes, want)
	}
	if l := n.listeners("imagepin.service"); l != nil {
		t.Errorf("got TCP listeners %q, want none", l)
	}
	n.wantRootOnly(imagepinSocket)

	n.Run("imagepin --address " + imagepinSocket + " pull " + ref)
	if out := n.Run("imagepin --address " + imagepinSocket + " images"); !strings.Contains(out, ref+" ") {
		t.Errorf("imagepin images:\n%s", out)
	}
	p := n.runPod(imagepinSocket, "first", ref)

	// A reload applies the new configuration.
	n.Run(`sed -i 's/# version_consistency = "off"/version_consistency = "node"/' /etc/imagepin/config.toml && systemctl reload imagepin`)
	n.Eventually("imagepin --address " + imagepinSocket + " inspect " + ref + " | grep 'version_consistency node'")

	// A restart keeps the socket.
	inode := n.Run("stat -c %i " + imagepinSocket)
	n.Run("systemctl restart imagepin.service")
	if now := n.Run("stat -c %i " + imagepinSocket); now != inode {
		t.Errorf("the restart changed the inode of the socket from %s to %s", inode, now)
	}
	n.wantRunning(imagepinSocket, p)

	// A connection to the socket starts the service.
	n.Run("systemctl stop imagepin.service")
	if _, err := n.Try(n.ctx, "systemctl is-active --quiet imagepin.service"); err == nil {
		t.Fatal("the service is active after a stop")
	}
	n.wantRunning(imagepinSocket, p)
	n.Run("systemctl is-active --quiet imagepin.service")

	// The service creates the socket if the socket unit is stopped.
	n.Run("systemctl stop imagepin.socket imagepin.service && systemctl start imagepin.service")
	if mode := n.Run("stat -c '%a %U:%G' " + imagepinSocket); mode != "600 root:root\n" {
		t.Errorf("mode and owner of the socket: got %s, want 600 root:root", mode)
	}
	n.wantRunning(imagepinSocket, p)

	n.removePod(imagepinSocket, p)
	n.Run("imagepin --address " + imagepinSocket + " uninstall --yes")
	n.Run("dpkg --purge imagepin")
	n.Run("rm /tmp/*.deb")
	if diff := difference(before, n.files()); diff != nil {
		t.Errorf("after the purge:\n%s", strings.Join(diff, "\n"))
	}
	if out := n.Run("ctr -n k8s.io images ls; ctr namespaces ls"); strings.Contains(out, "io.imagepin") || strings.Contains(out, "\nimagepin") {
		t.Errorf("left in containerd's metadata:\n%s", out)
	}
	// Images that imagepin pulled are containerd's, and run without imagepin.
	list, err := cri.NewImageServiceClient(n.dial(containerdSocket)).ImageStatus(n.ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	if err != nil || list.Image == nil {
		t.Errorf("ImageStatus of stock containerd: got %v, %v", list, err)
	}
	n.removePod(containerdSocket, n.runPod(containerdSocket, "second", ref))
}

// TestRemoveKeepsConfiguration checks that dpkg --remove keeps the configuration and the state.
func TestRemoveKeepsConfiguration(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	deb := packaged(t, "imagepin_*_{arch}.deb")
	n.install(deb)
	n.Run("echo '# mine' >>/etc/imagepin/config.toml && systemctl enable --now imagepin.service")
	n.Run("dpkg --remove imagepin")
	if out, err := n.Try(n.ctx, "systemctl is-active imagepin.service"); err == nil {
		t.Errorf("got service state %s after the removal", out)
	}
	key := n.Run("sha256sum /var/lib/imagepin/node.key")
	n.install(deb)
	n.Run("grep -q '^# mine' /etc/imagepin/config.toml && systemctl start imagepin.service")
	if now := n.Run("sha256sum /var/lib/imagepin/node.key"); now != key {
		t.Errorf("a new installation changed the node's key from %s to %s", key, now)
	}
}

// TestUpgradeRestarts checks that an upgrade restarts the service if it runs, and does not start it otherwise.
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
		t.Errorf("the upgrade did not restart process %s", pid)
	}
}

// wantRootOnly fails the test if another user than root can connect to a socket, or read the configuration or the key.
func (n *stockNode) wantRootOnly(socket string) {
	n.t.Helper()
	const as = "setpriv --reuid 65534 --regid 65534 --clear-groups "
	if out, err := n.Try(n.ctx, as+"imagepin --address "+socket+" --timeout 5s images"); err == nil || !strings.Contains(out, "permission denied") {
		n.t.Errorf("user nobody on %s: got %v, %s, want permission denied", socket, err, out)
	}
	for _, path := range []string{"/etc/imagepin/config.toml", "/var/lib/imagepin/node.key"} {
		if _, err := n.Try(n.ctx, as+"cat "+path); err == nil {
			n.t.Errorf("user nobody can read %s", path)
		}
	}
}

func (n *stockNode) mainPID(unit string) string {
	n.t.Helper()
	return strings.TrimSpace(n.Run("systemctl show --value -p MainPID " + unit))
}

// listeners returns the addresses of the TCP sockets that a service listens on, as in /proc/net/tcp.
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

// TestListenersAreSeen checks that listeners finds a TCP socket, so that TestStandalonePackage can fail.
func TestListenersAreSeen(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	n.install(packaged(t, "imagepin_*_{arch}.deb"))
	n.Run(`printf '[metrics]\naddress = "127.0.0.1:0"\n' >>/etc/imagepin/config.toml && systemctl start imagepin.service`)
	l := n.listeners("imagepin.service")
	if len(l) != 1 || !strings.HasPrefix(l[0], "0100007F:") {
		t.Fatalf("got listeners %q, want the metrics address", l)
	}
	if port, err := strconv.ParseUint(l[0][9:], 16, 16); err != nil || port == 0 {
		t.Errorf("got listener %q, %v, want a port", l[0], err)
	}
}

// TestHardening checks the rating of the unit by systemd-analyze, and that its restrictions apply to the process.
func TestHardening(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	n.install(packaged(t, "imagepin_*_{arch}.deb"))
	// The threshold is ten times the exposure level, from 0 to 10.
	n.Run("systemd-analyze security --offline=yes --threshold=20 --no-pager imagepin.service")
	n.Run("systemctl start imagepin.service")
	process := "/proc/" + n.mainPID("imagepin.service")
	status := n.Run("cat " + process + "/status")
	for _, want := range []string{"CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"} {
		if !strings.Contains(status, want) {
			t.Errorf("the status of the process has no %q:\n%s", want, status)
		}
	}
	for line := range strings.Lines(n.Run("cat " + process + "/mountinfo")) {
		f := strings.Fields(line)
		if f[4] == "/" && !strings.HasPrefix(f[5], "ro") || f[4] == "/etc" && !strings.HasPrefix(f[5], "ro") {
			t.Errorf("the process can write to %s: %s", f[4], f[5])
		}
	}
	if env := n.Run("tr '\\0' '\\n' <" + process + "/environ | cut -d= -f1 | sort | tr '\\n' ' '"); strings.Contains(strings.ToUpper(env), "PASS") || strings.Contains(env, "TOKEN") {
		t.Errorf("the environment of the process has a secret: %s", env)
	}
}
