package packages

import (
	"strings"
	"testing"
)

// TestContainerdPackage replaces stock containerd by the containerd with imagepin while pods run, and then removes the
// package.
func TestContainerdPackage(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	ref := n.push("team/app:v1")
	before := n.files()
	running := n.runPod(containerdSocket, "first", ref)

	out := n.install(packaged(t, "imagepin_*_{arch}.deb"), packaged(t, "imagepin-containerd_*_{arch}.deb"))
	if !strings.Contains(out, "systemctl restart containerd starts it") {
		t.Errorf("got installation output %s", out)
	}
	if exe := n.Run("readlink /proc/" + n.mainPID("containerd.service") + "/exe"); exe != "/usr/bin/containerd\n" {
		t.Errorf("before the restart: got containerd %s", exe)
	}
	n.Run("systemctl restart containerd")
	if exe := n.Run("readlink /proc/" + n.mainPID("containerd.service") + "/exe"); exe != "/usr/lib/imagepin/bin/containerd\n" {
		t.Errorf("after the restart: got containerd %s", exe)
	}
	if mode := n.Run("systemctl show -p TimeoutStartFailureMode --value containerd"); mode != "kill\n" {
		t.Errorf("after a timeout of its start, containerd gets the signal of mode %s, want kill", mode)
	}
	if l := n.Run("stat -c '%a %U:%G' /run/containerd/containerd.sock"); l != "660 root:root\n" {
		t.Errorf("mode and owner of containerd's socket: got %s, want 660 root:root", l)
	}
	if key := n.Run("stat -c '%a %U:%G' /var/lib/containerd/io.containerd.imagepin.v1.images/node.key"); key != "600 root:root\n" {
		t.Errorf("mode and owner of the node's key: got %s, want 600 root:root", key)
	}
	n.wantRunning(containerdSocket, running)
	if out := n.Run("imagepin images"); !strings.Contains(out, ref) {
		t.Errorf("the existing image is not listed:\n%s", out)
	}
	second := n.runPod(containerdSocket, "second", ref)
	if shims := n.Run("readlink /proc/[0-9]*/exe || true"); !strings.Contains(shims, "/usr/lib/imagepin/bin/containerd-shim-runc-v2\n") {
		t.Errorf("got shims without that of imagepin:\n%s", shims)
	}

	n.Run("imagepin uninstall --yes")
	out = n.Run("dpkg --purge imagepin-containerd imagepin")
	if !strings.Contains(out, "goes back to the distribution's") {
		t.Errorf("got removal output %s", out)
	}
	n.Run("systemctl restart containerd")
	if exe := n.Run("readlink /proc/" + n.mainPID("containerd.service") + "/exe"); exe != "/usr/bin/containerd\n" {
		t.Errorf("after the removal: got containerd %s", exe)
	}
	n.wantRunning(containerdSocket, running)
	n.wantRunning(containerdSocket, second)
	n.removePod(containerdSocket, running)
	n.removePod(containerdSocket, second)
	n.removePod(containerdSocket, n.runPod(containerdSocket, "third", ref))
	n.Run("rm /tmp/*.deb")
	if diff := difference(before, n.files()); diff != nil {
		t.Errorf("after the purge:\n%s", strings.Join(diff, "\n"))
	}
}
