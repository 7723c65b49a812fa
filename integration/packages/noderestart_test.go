package packages

import (
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

// wantNotTerminated fails the test if a [startingContainerd] got SIGTERM.
func (n *stockNode) wantNotTerminated(when string) {
	n.t.Helper()
	if _, err := n.Try(n.ctx, "rm /tmp/terminated"); err == nil {
		n.t.Errorf("%s, a containerd that was starting got SIGTERM", when)
	}
}

// TestNodeInstallContainerdStarts removes imagepin while its containerd is starting, and installs one that systemd ends because
// it starts for too long. Neither gets SIGTERM.
func TestNodeInstallContainerdStarts(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	ref := n.push("team/app:v1")
	n.addInstaller("imagepin")
	n.WriteFile("/tmp/starting", startingContainerd, 0o755)
	n.WriteFile("/etc/systemd/system/containerd.service.d/10-timeout.conf", "[Service]\nTimeoutStartSec=10s\n", 0o644)
	n.Run("systemctl daemon-reload")
	running := n.runPod(containerdSocket, "first", ref)
	before := n.files()

	n.Run(install + "plugin")
	n.Run("cp --remove-destination /tmp/starting /opt/imagepin/bin/containerd; systemctl restart --no-block containerd")
	n.Run("while test $(systemctl show -p SubState --value containerd) != start; do sleep 0.05; done")
	n.Run(uninstall)
	n.wantNotTerminated("in a removal")
	n.wantFiles("after the removal", before)
	n.wantRunning(containerdSocket, running)

	n.Run("cp /tmp/starting " + installer + "/usr/lib/imagepin/bin/containerd")
	if out := n.refused(install + "plugin"); !strings.Contains(out, "rolled back") {
		t.Errorf("got %s, want a rollback", out)
	}
	n.wantNotTerminated("after systemd's timeout")
	n.wantFiles("after systemd's timeout", before)
	n.wantRunning(containerdSocket, running)
}

// TestNodeInstallContainerdEnds installs a containerd that ends, at once or when systemd takes it for ready. A unit that requires
// containerd runs again.
func TestNodeInstallContainerdEnds(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	ref := n.push("team/app:v1")
	n.addInstaller("imagepin")
	n.WriteFile("/etc/systemd/system/kubelet.service", "[Unit]\nRequires=containerd.service\nAfter=containerd.service\n[Service]\nExecStart=/bin/sleep infinity\n", 0o644)
	// As the unit of containerd's documentation: the rollback is earlier.
	n.WriteFile("/etc/systemd/system/containerd.service.d/10-restart.conf", "[Service]\nRestartSec=5\n", 0o644)
	n.Run("systemctl daemon-reload; systemctl start kubelet")
	running := n.runPod(containerdSocket, "first", ref)
	before := n.files()
	for _, end := range []string{"exit 1", "exec systemd-notify --ready"} {
		n.WriteFile(installer+"/usr/lib/imagepin/bin/containerd", "#!/bin/sh\ncase \"$*\" in *dump*) exit 0 ;; esac\n"+end+"\n", 0o755)
		if out := n.refused(install + "plugin --wait 3s"); !strings.Contains(out, "rolled back") {
			t.Errorf("%s: got %s, want a rollback", end, out)
		}
		n.wantFiles("after the rollback", before)
		n.wantRunning(containerdSocket, running)
		n.Run("systemctl is-active containerd && systemctl is-active kubelet")
	}
}
