package stock

import (
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestPinnedLabel pins an image as operators and distributions do, with a label on one of its records. kubelet does not remove it until
// the label is gone. A pull keeps the label, also on a tag that has moved. With stock, a pull of the record removes it.
func TestPinnedLabel(t *testing.T) {
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		t.Parallel()
		r := pinnedRig{testkit.NewRig(t, node.Options{Binary: binary})}
		other, _ := r.Push("other:v1", images.Options{Version: "other"}, images.HostPlatform())
		otherID := r.MustPull(other, "")
		for _, what := range []string{"tag", "digest", "id"} {
			ref, byDigest := r.Push(what+":v1", images.Options{Version: what}, images.HostPlatform())
			id := r.MustPull(ref, "")
			record := map[string]string{"tag": ref, "digest": byDigest, "id": id}[what]
			r.wantPinned("before", id, false)
			testkit.LabelImage(t, r.Node, record, testkit.PinnedLabel, "pinned")
			r.wantPinned("the label on the "+what, id, true)
			if binary == node.Ours {
				r.MustPull(ref, "")
			}
			if err := r.Restart(r.Ctx, nil); err != nil {
				t.Fatal(err)
			}
			r.wantPinned("after a pull and a restart", id, true)
			r.wantPinned("another image", otherID, false)

			r.Push(what+":v1", images.Options{Version: what + "2"}, images.HostPlatform())
			now := r.MustPull(ref, "")
			r.wantPinned("the image that the tag was, with the label on the "+what, id, what != "tag")
			r.wantPinned("the image that the tag is, with the label on the "+what, now, what == "tag" && binary == node.Ours)
			testkit.LabelImage(t, r.Node, record, testkit.PinnedLabel, "")
			r.wantPinned("without the label", id, false)
			r.wantPinned("without the label", now, false)
		}
	})
}

type pinnedRig struct{ *testkit.Rig }

// wantPinned fails the test unless the CRI soon reports whether an image is pinned, when it lists images and for one image.
func (r pinnedRig) wantPinned(what, id string, want bool) {
	r.T.Helper()
	r.Eventually(what+": whether the image is pinned", func() bool {
		return r.Listed()[id].GetPinned() == want && r.MustStatus(id, "").GetPinned() == want
	})
}

// TestPrunePinned prunes all images. One with the label of containerd's CRI stays until the label is gone.
func TestPrunePinned(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	ref, _ := r.Push("kept:v1", images.Options{Version: "kept"}, images.HostPlatform())
	other, _ := r.Push("other:v1", images.Options{Version: "other"}, images.HostPlatform())
	kept := r.MustPull(ref, "")
	r.MustPull(other, "")
	testkit.LabelImage(t, r.Node, ref, testkit.PinnedLabel, "pinned")
	pinnedRig{r}.wantPinned("the label", kept, true)
	r.WantOperator(0, []string{"prune", "--older-than", "0s", "--yes"}, other)
	if r.MustStatus(ref, "") == nil || r.MustStatus(other, "") != nil {
		t.Errorf("after prune: got %v and %v", r.MustStatus(ref, ""), r.MustStatus(other, ""))
	}
	testkit.LabelImage(t, r.Node, ref, testkit.PinnedLabel, "")
	pinnedRig{r}.wantPinned("without the label", kept, false)
	r.WantOperator(0, []string{"prune", "--older-than", "0s", "--yes"}, ref)
}
