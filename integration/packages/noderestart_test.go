package packages

import (
	"fmt"
	"strings"
	"testing"
)

// startingContainerd accepts every configuration, and never becomes ready. It reports SIGTERM: a real containerd that gets it
// while it loads its shims can end their containers.
const startingContainerd = `#!/usr/bin/perl
$SIG{TERM} = sub { open(my $f, ">", "/tmp/terminated"); exit 0 };
exit 0 if "@ARGV" =~ /dump/;
sleep 1 while 1;
`

// wantNotTerminated fails the test if a containerd that was starting got SIGTERM.
func (n *stockNode) wantNotTerminated() {
	n.t.Helper()
	n.Run("test ! -e /tmp/terminated")
}

// slowContainerd is stock containerd, which once starts for ten seconds. Like [startingContainerd], it reports SIGTERM.
const slowContainerd = `#!/usr/bin/perl
$SIG{TERM} = sub { open(my $f, ">", "/tmp/terminated"); exit 0 };
if (unlink "/tmp/slow") { sleep 10 }
exec "/usr/bin/containerd-stock", @ARGV;
`

// TestNodeInstallContainerdStarts installs and removes imagepin. A containerd that is starting does not get SIGTERM.
func TestNodeInstallContainerdStarts(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	ref := n.push("team/app:v1")
	n.addInstaller("imagepin-failpoints")
	n.Run("systemctl set-environment IMAGEPIN_FAILPOINT=@/tmp/point")
	n.Run("mv /usr/bin/containerd /usr/bin/containerd-stock")
	n.WriteFile("/usr/bin/containerd", slowContainerd, 0o755)
	n.WriteFile("/etc/systemd/system/containerd.service.d/10-stop.conf", "[Service]\nExecStop=/bin/sh -c 'test ! -e /tmp/slow || sleep 2'\n", 0o644)
	n.Run("systemctl daemon-reload; systemctl restart containerd")
	running := n.runPod(containerdSocket, "first", ref)
	before := n.files()
	n.Run("cp " + installer + "/usr/lib/imagepin/bin/containerd /tmp/containerd")

	// The wait ends while the node's containerd stops. systemd starts it again, and after that the rollback restarts it: it begins
	// again a second after its first process is killed.
	n.WriteFile(installer+"/usr/lib/imagepin/bin/containerd", startingContainerd, 0o755)
	n.Run("touch /tmp/slow")
	if out := n.killAt(install+"plugin --wait 1s", "install.undone"); !strings.Contains(out, "rolled back") {
		t.Errorf("got %s, want a rollback", out)
	}
	n.wantNotTerminated()
	n.wantFiles("after the rollback", before)
	n.wantRunning(containerdSocket, running)

	// A removal while imagepin's containerd starts.
	n.Run("cp /tmp/containerd " + installer + "/usr/lib/imagepin/bin/containerd")
	n.Run(install + "plugin")
	n.Run("rm /opt/imagepin/bin/containerd")
	n.WriteFile("/opt/imagepin/bin/containerd", startingContainerd, 0o755)
	n.Run("systemctl restart --no-block containerd; while test $(systemctl show -p SubState --value containerd) != start; do sleep 0.05; done")
	n.Run(uninstall)
	n.wantNotTerminated()
	n.wantFiles("after the removal", before)
	n.wantRunning(containerdSocket, running)

	// systemd ends a containerd that starts for too long.
	n.WriteFile("/etc/systemd/system/containerd.service.d/10-stop.conf", "[Service]\nTimeoutStartSec=10s\n", 0o644)
	n.Run("systemctl daemon-reload")
	n.WriteFile(installer+"/usr/lib/imagepin/bin/containerd", startingContainerd, 0o755)
	if out := n.refused(install + "plugin"); !strings.Contains(out, "rolled back") {
		t.Errorf("got %s, want a rollback", out)
	}
	n.wantNotTerminated()
	n.wantFiles("after systemd's timeout", before)
	n.wantRunning(containerdSocket, running)
}

// TestNodeInstallContainerdEnds installs a containerd that ends, at once or when systemd takes it for ready. Units that require
// containerd run again.
func TestNodeInstallContainerdEnds(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	ref := n.push("team/app:v1")
	n.addInstaller("imagepin")
	for unit, required := range map[string]string{"kubelet": "containerd", "agent": "kubelet"} {
		n.WriteFile("/etc/systemd/system/"+unit+".service", fmt.Sprintf("[Unit]\nRequires=%[1]s.service\nAfter=%[1]s.service\n[Service]\nExecStart=/bin/sleep infinity\n", required), 0o644)
	}
	// RestartSec as in containerd's own unit: the rollback begins before systemd starts containerd again.
	n.WriteFile("/etc/systemd/system/containerd.service.d/10-restart.conf", "[Service]\nRestartSec=5\n", 0o644)
	n.Run("systemctl daemon-reload; systemctl start agent")
	running := n.runPod(containerdSocket, "first", ref)
	before := n.files()
	for _, end := range []string{"exit 1", "exec systemd-notify --ready"} {
		n.WriteFile(installer+"/usr/lib/imagepin/bin/containerd", "#!/bin/sh\ncase \"$*\" in *dump*) exit 0 ;; esac\n"+end+"\n", 0o755)
		if out := n.refused(install + "plugin --wait 3s"); !strings.Contains(out, "rolled back") {
			t.Errorf("%s: got %s, want a rollback", end, out)
		}
		n.wantFiles("after the rollback", before)
		n.wantRunning(containerdSocket, running)
		for _, unit := range []string{"containerd", "kubelet", "agent"} {
			n.Run("systemctl is-active " + unit)
		}
	}
	// The node leaves the change, also if such a unit does not start.
	n.WriteFile("/etc/systemd/system/agent.service", "[Unit]\nRequires=kubelet.service\nAfter=kubelet.service\n[Service]\nType=notify\nExecStart=/bin/false\n", 0o644)
	if out := n.refused(install + "plugin --wait 3s"); !strings.Contains(out, "cannot roll back: agent.service ran before: ") {
		t.Errorf("got %s, want the unit that does not start", out)
	}
	n.wantFiles("after a rollback with a unit that does not start", before)
	n.Run("systemctl is-active kubelet")
}
