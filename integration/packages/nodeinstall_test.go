package packages

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/port"
)

// installer is the directory in a machine with the files of the node image.
const installer = "/tmp/image"

// addInstaller extracts the tarballs into the machine, as the node image has them, with a binary as the imagepin command.
func (n *stockNode) addInstaller(binary string) {
	n.t.Helper()
	for _, name := range []string{"imagepin", "imagepin-containerd"} {
		n.CopyFile("/tmp/"+name+".tar.gz", packaged(n.t, name+"-[0-9]*-linux-{arch}.tar.gz"), 0o600)
		n.Run("mkdir -p " + installer + " && tar -C " + installer + " -xzf /tmp/" + name + ".tar.gz && rm /tmp/" + name + ".tar.gz")
	}
	n.CopyFile(installer+"/usr/bin/imagepin", filepath.Join(repository, "bin", binary), 0o755)
}

const (
	install   = installer + "/usr/bin/imagepin install --root / --from " + installer + " --mode "
	uninstall = installer + "/usr/bin/imagepin uninstall --root / --yes"
)

// modes are the modes of an installation, with the service that imagepin is in and its socket.
var modes = []struct{ name, unit, socket string }{
	{"serve", "imagepin.service", imagepinSocket},
	{"plugin", "containerd.service", containerdSocket},
}

// wantFiles fails the test unless the machine has the files and units of a listing.
func (n *stockNode) wantFiles(when string, want map[string]string) {
	n.t.Helper()
	now := n.files()
	delete(now, "/run/imagepin-install") // until the next boot
	if diff := difference(want, now); diff != nil {
		n.t.Errorf("%s:\n%s", when, strings.Join(diff, "\n"))
	}
}

// refused runs an installation that must fail, and returns its output.
func (n *stockNode) refused(script string) string {
	n.t.Helper()
	out, err := n.Try(n.ctx, script)
	if err == nil {
		n.t.Errorf("%s succeeds:\n%s", script, out)
	}
	return out
}

// TestNodeInstall installs imagepin on a node without kubelet, twice in each mode, upgrades it, and removes it.
func TestNodeInstall(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	ref := n.push("team/app:v1")
	n.addInstaller("imagepin")
	running := n.runPod(containerdSocket, "first", ref)
	before := n.files()
	n.Run(uninstall) // nothing is installed
	for _, mode := range modes {
		if out := n.Run(install + mode.name); !strings.Contains(out, "is installed, mode "+mode.name) {
			t.Errorf("the output of the installation:\n%s", out)
		}
		n.Run("/opt/imagepin/bin/imagepin --address " + mode.socket + " images | grep " + ref)
		if mode.name == "serve" { // it has what containerd does not report
			n.Run("grep '^sandbox = .*pause' /etc/imagepin/config.toml && stat -c %a /etc/imagepin/config.toml | grep -x 600")
		}
		n.wantRunning(mode.socket, running)
		pid := n.mainPID(mode.unit)
		if out := n.Run(install + mode.name); strings.Contains(out, "restart ") || strings.Contains(out, "wrote ") {
			t.Errorf("the second installation changes something:\n%s", out)
		}
		if now := n.mainPID(mode.unit); now != pid {
			t.Errorf("the second installation restarts process %s", pid)
		}
		for _, other := range modes {
			if other != mode && !strings.Contains(n.refused(install+other.name), "is installed with mode "+mode.name) {
				t.Errorf("mode %s over mode %s is not refused", other.name, mode.name)
			}
		}
		// Another build of the command, as in an upgrade.
		n.CopyFile(installer+"/usr/bin/imagepin", filepath.Join(repository, "bin", "imagepin-failpoints"), 0o755)
		if out := n.Run(install + mode.name); !strings.Contains(out, "wrote /opt/imagepin/bin/imagepin\n") || !strings.Contains(out, "restart "+mode.unit) {
			t.Errorf("the output of the upgrade:\n%s", out)
		}
		n.wantRunning(mode.socket, running)
		n.CopyFile(installer+"/usr/bin/imagepin", filepath.Join(repository, "bin", "imagepin"), 0o755)
		if mode.name == "serve" { // an imagepin that does not work is removed too
			n.Run("systemctl stop imagepin.socket imagepin.service")
		}
		n.Run(uninstall)
		n.wantFiles("after the removal from mode "+mode.name, before)
		n.wantRunning(containerdSocket, running)
	}
}

// TestNodeInstallRefused checks that an installation which cannot work changes nothing.
func TestNodeInstallRefused(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	n.addInstaller("imagepin")
	before := n.files()
	refused := func(script string, words ...string) {
		t.Helper()
		out := n.refused(script)
		for _, w := range append(words, "nothing was changed") {
			if !strings.Contains(out, w) {
				t.Errorf("%s: got %s, want %q in it", script, out, w)
			}
		}
	}
	n.WriteFile("/tmp/bad.toml", "version = 3\npull = 1\n", 0o600)
	refused(install+"serve --config /tmp/bad.toml", "/etc/imagepin/config.toml", "pull")
	n.WriteFile("/tmp/elsewhere.toml", "version = 3\ncontainerd_address = \"/run/elsewhere.sock\"\n", 0o600)
	refused(install+"serve --config /tmp/elsewhere.toml", "/run/elsewhere.sock")
	n.Run("cp /etc/containerd/config.toml /tmp/good.toml && echo 'version = 99' >/etc/containerd/config.toml")
	refused(install+"plugin", "config dump")
	n.Run("mv /tmp/good.toml /etc/containerd/config.toml")
	n.Run("systemctl stop containerd")
	refused(install+"serve", "containerd.service does not run")
	n.Run("systemctl start containerd")
	n.Eventually("ctr version")
	n.Run("mkdir -p /usr/lib/imagepin/bin && touch /usr/lib/imagepin/bin/containerd")
	refused(install+"plugin", "installed from a package")
	n.Run("rm -r /usr/lib/imagepin")
	// A kubelet that does not answer would not be healthy after a rollback either.
	n.WriteFile("/etc/systemd/system/kubelet.service", "[Service]\nExecStart=/bin/bash -c 'while :; do sleep 1000; done' kubelet --config=/etc/kubelet.yaml\n", 0o644)
	n.WriteFile("/etc/kubelet.yaml", "healthzPort: "+reservePort(t)+"\n", 0o644)
	n.Run("systemctl daemon-reload; systemctl start kubelet")
	refused(install+"serve --wait 1s", "kubelet.service is not healthy: ")
	n.WriteFile("/etc/kubelet.yaml", "containerRuntimeEndpoint: {}\n", 0o644)
	refused(install+"serve", "/etc/kubelet.yaml")
	n.Run("systemctl stop kubelet; rm /etc/systemd/system/kubelet.service /etc/kubelet.yaml; systemctl daemon-reload")
	n.wantFiles("after refused installations", before)
	n.WriteFile("/etc/systemd/system/containerd.service.d/60-later.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/containerd --log-level warn\n", 0o644)
	pid := n.mainPID("containerd.service")
	if out := n.refused(install + "plugin"); !strings.Contains(out, "a drop-in after") || n.mainPID("containerd.service") != pid {
		t.Errorf("with a drop-in that comes later, the output is %s", out)
	}
	for script, want := range map[string]string{
		install + "somehow":                                              `--mode "somehow"`,
		install + "plugin --config /tmp/bad.toml":                        "--config is of --mode serve",
		installer + "/usr/bin/imagepin install --mode serve":             "--root is required",
		installer + "/usr/bin/imagepin uninstall --root /":               "add --yes",
		strings.Replace(install, "--root /", "--root /tmp", 1) + "serve": "/tmp is not the root of a node with systemd",
	} {
		if out := n.refused(script); !strings.Contains(out, want) {
			t.Errorf("%s: got %s, want %q in it", script, out, want)
		}
	}
}

// TestNodeInstallRollsBack installs a containerd that does not become ready, and switches a kubelet that does not start. The
// node is as before, and its pod runs. This also holds if the process is killed while it rolls back.
func TestNodeInstallRollsBack(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	ref := n.push("team/app:v1")
	n.addInstaller("imagepin-failpoints")
	n.Run("systemctl set-environment IMAGEPIN_FAILPOINT=@/tmp/point")
	running := n.runPod(containerdSocket, "first", ref)
	n.WriteFile("/etc/kubelet.yaml", "kind: KubeletConfiguration\nhealthzPort: 0 # off\n", 0o640)
	n.Run("chown daemon:mail /etc/kubelet.yaml")
	n.WriteFile("/etc/systemd/system/kubelet.service", `[Unit]
Requires=containerd.service
After=containerd.service
[Service]
ExecStart=/usr/local/bin/kubelet --config=/etc/kubelet.yaml
Restart=always
`, 0o644)
	n.WriteFile("/usr/local/bin/kubelet", "#!/bin/bash\n! grep -q imagepin /etc/kubelet.yaml && while :; do sleep 1000; done\n", 0o755)
	n.Run("systemctl daemon-reload && systemctl start kubelet")
	before := n.files()
	n.Run("mv " + installer + "/usr/lib/imagepin/bin/containerd /tmp/containerd")
	n.WriteFile(installer+"/usr/lib/imagepin/bin/containerd", startingContainerd, 0o755)
	for _, test := range []struct{ mode, wait, point, want string }{
		{"plugin", "3s", "", "restart containerd.service: context deadline exceeded"},
		{"plugin", "1ms", "", "restart containerd.service: context deadline exceeded"},
		{"plugin", "3s", "install.restored:1", "an earlier change was interrupted"},
		{"plugin", "3s", "install.restored:5", "an earlier change was interrupted"},
		{"plugin", "3s", "install.undone", "an earlier change was interrupted"},
		{"plugin", "3s", "install.restarting", "an earlier change was interrupted"},
		{"serve", "15s", "", "rolling back: kubelet"}, // it restarts again and again, or does not run
	} {
		change := install + test.mode + " --wait " + test.wait
		var out string
		if test.point == "" {
			out = n.refused(change)
		} else {
			out = n.killAt(change, test.point)
		}
		if !strings.Contains(out, test.want) || !strings.Contains(out, "rolled back") {
			t.Errorf("mode %s, kill at %q: got %s, want %q in it", test.mode, test.point, out, test.want)
		}
		n.wantNotTerminated()
		n.wantFiles("after mode "+test.mode+", kill at "+test.point, before)
		n.Run("systemctl is-active containerd && systemctl is-active kubelet && ctr version")
		n.Run("! grep imagepin /etc/kubelet.yaml")
		n.wantRunning(containerdSocket, running)
	}
	// systemd closes its connections when it executes itself again, as in its upgrade.
	if out := n.refused("(sleep 2; systemctl daemon-reexec) & " + install + "plugin --wait 5s"); !strings.Contains(out, "rolled back") {
		t.Errorf("with systemctl daemon-reexec: got %s", out)
	}
	n.wantNotTerminated()
	n.wantFiles("after systemctl daemon-reexec", before)
	n.Run("systemctl is-active containerd && systemctl is-active kubelet && ctr version")
	// As after a reboot: the process is not started again, and the unit of the interrupted change is.
	n.WriteFile("/tmp/point", "install.reloaded", 0o644)
	n.Run(install + "plugin >/dev/null & while ! test -e /tmp/point.died; do sleep 0.05; done; systemctl stop imagepin-install; rm /tmp/point*; wait || true")
	n.Run("rm -rf /opt/imagepin/staged") // as a request that does not get further
	n.Run("systemctl daemon-reload && systemctl is-enabled imagepin-install-recover && systemctl start imagepin-install-recover")
	n.Eventually("! systemctl is-active imagepin-install-recover && test ! -e /opt/imagepin")
	n.wantFiles("after a reboot", before)
	n.wantRunning(containerdSocket, running)

	n.Run("mv /tmp/containerd " + installer + "/usr/lib/imagepin/bin/containerd")
	n.Run(install + "plugin")
	n.Run("/opt/imagepin/bin/imagepin images | grep " + ref)
}

// reservePort returns a port that is free until the end of the test, except for a server of the test.
func reservePort(t *testing.T) string {
	t.Helper()
	r, err := port.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r.Port()
}

// perlKubelet answers health checks.
const perlKubelet = `#!/usr/bin/perl
use IO::Socket::INET;
my $s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => %s, Listen => 9, ReuseAddr => 1) or die;
while (my $c = $s->accept) { <$c>; print $c "HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nok"; close $c }
`

// TestNodeInstallChangedByOthers removes an imagepin whose files, record or kubelet others have changed. It never leaves a
// service that runs what is gone, and never takes what was there before.
func TestNodeInstallChangedByOthers(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	n.addInstaller("imagepin")
	free := reservePort(t)
	kubelet := "kind: KubeletConfiguration\nhealthzPort: " + free + "\n"
	n.WriteFile("/etc/kubelet.yaml", kubelet, 0o640)
	n.WriteFile("/usr/local/bin/kubelet", fmt.Sprintf(perlKubelet, free), 0o755)
	n.WriteFile("/etc/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/local/bin/kubelet --config=/etc/kubelet.yaml\n", 0o644)
	n.WriteFile("/etc/systemd/system/containerd.service.d/10-path.conf", "[Service]\nEnvironment=PATH=/opt/cni/bin:/usr/sbin:/usr/bin\n", 0o644)
	n.Run("chown daemon:mail /etc/kubelet.yaml; systemctl daemon-reload; systemctl restart containerd; systemctl start kubelet")
	n.CopyFile("/etc/imagepin/config.toml", filepath.Join(repository, "packaging", "config.toml"), 0o640)
	before := n.files()

	n.Run(install + "plugin")
	n.Run("grep -zx PATH=/opt/imagepin/bin:/opt/cni/bin:/usr/sbin:/usr/bin /proc/" + n.mainPID("containerd.service") + "/environ >/dev/null")
	n.Run("rm -r /opt/imagepin; " + uninstall + "; ctr version")
	n.wantFiles("after a removal without /opt/imagepin", before)

	n.Run(install + "serve")
	pid := n.mainPID("kubelet.service")
	n.Run("sed -i s,/run/imagepin/imagepin.sock,/run/containerd/containerd.sock, /etc/kubelet.yaml; " + uninstall)
	if n.mainPID("kubelet.service") == pid { // it would use a socket that is gone
		t.Error("kubelet is not restarted after another tool has set its endpoint")
	}
	n.wantFiles("after a removal from another kubelet configuration", before)

	n.WriteFile("/etc/kubelet.yaml", kubelet+"containerRuntimeEndpoint: unix:///run/imagepin/imagepin.sock\n", 0o640)
	n.Run(install + "serve")
	n.Run(": >/opt/imagepin/install.json")
	if out := n.refused(uninstall); !strings.Contains(out, "install.json is damaged") || !strings.Contains(out, "set it in /etc/kubelet.yaml") {
		t.Errorf("the removal of a socket that kubelet uses: %s", out)
	}
	n.Run("systemctl is-active imagepin.service")
	n.WriteFile("/etc/kubelet.yaml", kubelet, 0o640)
	n.Run("systemctl restart kubelet; " + uninstall)
	n.wantFiles("after a removal without a record", before)
}

// TestNodeInstallKilled kills the process that changes the node at each of its failpoints, in each mode, once in an
// installation and once in a removal. systemd starts it again, and it rolls back or goes on. Then the node is healthy, and the
// next command succeeds.
func TestNodeInstallKilled(t *testing.T) {
	t.Parallel()
	var killed sync.Map // by failpoint
	t.Cleanup(func() { wantAllFailpoints(t, &killed) })
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			n := newStockNode(t)
			ref := n.push("team/app:v1")
			n.addInstaller("imagepin-failpoints")
			running := n.runPod(containerdSocket, "first", ref)
			n.Run("systemctl set-environment IMAGEPIN_FAILPOINT=@/tmp/point")
			before := n.files()
			for _, change := range []string{install + mode.name, uninstall} {
				points := n.trace(change)
				t.Logf("%d failpoints in %s: %s", len(points), change, strings.Join(points, " "))
				if len(points) < 5 {
					t.Errorf("got failpoints %q, want at least 5", points)
				}
				last := make(map[string]int)
				for _, point := range points {
					last[point]++
				}
				seen := make(map[string]int)
				for i, point := range points {
					if seen[point]++; seen[point] > 1 && seen[point] < last[point] {
						continue // as the first
					}
					n.reach(change, before)
					n.killAt(change, fmt.Sprintf("%s:%d", point, seen[point]))
					killed.Store(point, true)
					n.Run("ctr version")
					n.wantRunning(containerdSocket, running)
					if change == uninstall {
						continue
					}
					if _, err := n.Try(n.ctx, "test -e /opt/imagepin/install.json"); err != nil {
						n.wantFiles("after a kill at "+points[i], before)
					}
				}
				n.reach(change, before)
				n.Run(change)
			}
			n.wantFiles("after the removal", before)
			n.wantRunning(containerdSocket, running)
		})
	}
}

var failpointOfInstall = regexp.MustCompile(`(?m)^\t"(install\.[a-z]+)",`)

// wantAllFailpoints fails the test unless the process was killed at each failpoint of an installation. TestNodeInstallRollsBack
// kills it at those of a rollback.
func wantAllFailpoints(t *testing.T, killed *sync.Map) {
	b, err := os.ReadFile(filepath.Join(repository, "internal", "failpoint", "failpoint.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := failpointOfInstall.FindAllStringSubmatch(string(b), -1)
	if len(names) < 10 {
		t.Errorf("got failpoints %q, want at least 10", names)
	}
	for _, m := range names {
		if _, ok := killed.Load(m[1]); !ok && !slices.Contains([]string{"install.restarting", "install.restored", "install.undone"}, m[1]) {
			t.Errorf("no kill at failpoint %s", m[1])
		}
	}
}

// reach brings the node to the state in which a change starts.
func (n *stockNode) reach(change string, before map[string]string) {
	n.t.Helper()
	if change == uninstall {
		mode := "serve"
		if strings.Contains(n.t.Name(), "plugin") {
			mode = "plugin"
		}
		// A removal that was interrupted after its last decision goes on first.
		if out, err := n.Try(n.ctx, install+mode); err != nil {
			if !strings.Contains(out, "removal of imagepin was interrupted") {
				n.t.Fatalf("installation: %s", out)
			}
			n.Run(uninstall)
			n.Run(install + mode)
		}
		return
	}
	n.Run(uninstall)
	n.wantFiles("before an installation", before)
}

// trace returns the failpoints that a change of the node reaches.
func (n *stockNode) trace(change string) []string {
	n.t.Helper()
	n.reach(change, n.files())
	n.WriteFile("/tmp/point", "never", 0o644)
	n.Run("rm -f /tmp/point.trace; " + change)
	points := strings.Fields(n.Run("grep ^install /tmp/point.trace; rm -f /tmp/point /tmp/point.trace"))
	return points
}

// killAt makes a change whose process dies at a failpoint, waits for the end of the next process, and returns the output.
func (n *stockNode) killAt(change, point string) string {
	n.t.Helper()
	n.WriteFile("/tmp/point", point, 0o644)
	ctx, cancel := context.WithTimeout(n.ctx, 2*time.Minute)
	defer cancel()
	// The process that systemd starts after a second must not die too.
	out, err := n.Try(ctx, `{ `+change+`; } & while ! test -e /tmp/point.died && kill -0 $!; do sleep 0.05; done
		rm -f /tmp/point; wait $! || true; test -e /tmp/point.died && rm -f /tmp/point.died /tmp/point.trace`)
	if err != nil || strings.Contains(out, "ended without a result") {
		n.t.Errorf("a kill at %s of %s: %v\n%s", point, change, err, out)
	}
	return out
}
