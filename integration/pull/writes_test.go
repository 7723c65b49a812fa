package pull

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// noCollection disables automatic garbage collection, because a collection is a write. The pause threshold is for the time after the
// collection of a first start: the next one is due when the first one's duration is this part of the time.
const noCollection = `
[plugins."io.containerd.gc.v1.scheduler"]
  startup_delay = "24h"
  mutation_threshold = 1000000
  pause_threshold = 0.0000001
`

// TestMetadataWrites counts the transactions of containerd's metadata database, each of which is a sync to disk. A
// first pull has fewer than with stock, also of an image that the node has from another repository. A pull of an image on the node has
// none.
func TestMetadataWrites(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	stock, ours := testkit.Node(t, node.Options{Binary: node.Stock, Extra: noCollection}), testkit.Node(t, node.Options{Extra: noCollection})
	writes := func(n *node.Node, ref string) uint64 {
		t.Helper()
		before, err := n.MetadataWrites()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Pull(ctx, ref, ""); err != nil {
			t.Fatal(err)
		}
		after, err := n.MetadataWrites()
		if err != nil {
			t.Fatal(err)
		}
		return after - before
	}
	// The first pull of a boot waits for a collection.
	testkit.Push(t, reg, "first:v1", testkit.App(t, images.Options{Version: "first"}))
	writes(stock, reg.Ref("first:v1"))
	writes(ours, reg.Ref("first:v1"))
	index := testkit.AppIndex(t, images.Options{Version: "index"}, images.HostPlatform(), "linux/s390x")
	contents := map[string]remote.Taggable{
		"index": index, "index-of-another-repository": index, "manifest": testkit.App(t, images.Options{Version: "manifest"}),
	}
	fewer := map[string]uint64{"index": 6, "index-of-another-repository": 4, "manifest": 5}
	if node.DefaultMode() == node.Serve { // each record is a transaction
		fewer = map[string]uint64{"index": 4, "index-of-another-repository": 3, "manifest": 3}
	}
	for _, kind := range slices.Sorted(maps.Keys(contents)) {
		digest := testkit.Push(t, reg, kind+":v1", contents[kind])
		tag := reg.Ref(kind + ":v1")
		if got, of := writes(ours, tag), writes(stock, tag); got == 0 || got+fewer[kind] > of {
			t.Errorf("%s: first pull: got %d writes, want at least %d fewer than the %d of stock", kind, got, fewer[kind], of)
		}
		for _, ref := range []string{tag, reg.Ref(kind + "@" + digest.String())} {
			if got := writes(ours, ref); got != 0 {
				t.Errorf("pull of %s on the node: got %d writes, want 0", ref, got)
			}
		}
	}
}
