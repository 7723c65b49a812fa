package apply

import (
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

const strictRules = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/strict/**"]
locked = "strict"
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/warn/**"]
locked = "warn"
`

// TestStrict checks that a node runs only what the lock names where a rule says so: by tag, by the digest of the index, and by
// that of the manifest. The sandbox image is not an image of a pod.
func TestStrict(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: strictRules})
	ref, other, warn := r.Reg.Ref("strict/app:v1"), r.Reg.Ref("strict/other:v1"), r.Reg.Ref("warn/app:v1")
	locked := r.Version("strict/app:v1", "locked")
	r.Version("strict/other:v1", "other")
	r.Version("warn/app:v1", "warned")
	_, unnamed := r.Push("strict/app:v2", images.Options{Version: "unnamed"}, images.HostPlatform())
	refuse := func(k node.KubeletPod) {
		t.Helper()
		if _, err := r.RunAsKubelet(r.Ctx, k); err == nil {
			t.Errorf("a pod of %s runs", k.Image)
		} else {
			testkit.WantCode(t, err, 7, "NotInLock", k.Image, "imagepin apply")
		}
	}
	refuse(node.KubeletPod{Image: ref}) // no lock yet
	r.WantVersion(node.KubeletPod{Image: warn}, "warned")
	imagepinWants(r, 0, []string{"apply", writeLock(r, "lock.yaml", map[string]string{ref: locked})})
	r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "locked")
	r.WantVersion(node.KubeletPod{Image: r.Reg.Ref("strict/app@" + locked)}, "locked")
	refuse(node.KubeletPod{Image: other})
	refuse(node.KubeletPod{Image: other, Always: true})
	refuse(node.KubeletPod{Image: unnamed})
	// Another tool has it on the node already.
	if out, err := r.Ctr(r.Ctx, "-n", "k8s.io", "images", "pull", "--plain-http", other); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	testkit.WaitForImage(t, r.Node, other)
	refuse(node.KubeletPod{Image: other})
	imagepinWants(r, 1, []string{"pull", other}, "NotInLock")
}
