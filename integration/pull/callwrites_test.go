package pull

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// callWrites is how many transactions of containerd's metadata database calls wait for.
type callWrites struct {
	pulls, remove, create uint64
}

const (
	// concurrentImages is how many images are pulled, four at a time.
	concurrentImages = 50
	// countedCalls is how often other calls are counted. The least number counts, because containerd also writes in the
	// background, for example after the start of a sandbox.
	countedCalls = 4
)

// TestCallWrites counts the transactions of concurrent pulls, RemoveImage and CreateContainer, beside stock. Each is a sync
// to disk.
func TestCallWrites(t *testing.T) {
	t.Parallel()
	reg := testkit.Registry(t)
	pause := testkit.PushPause(t, reg)
	for i := range concurrentImages {
		testkit.Push(t, reg, writesImage(i), testkit.App(t, images.Options{Version: fmt.Sprint(i)}))
	}
	stock := countCallWrites(t, reg, node.Options{Binary: node.Stock, SandboxImage: pause, Extra: noCollection})
	ours := countCallWrites(t, reg, node.Options{SandboxImage: pause, Extra: noCollection})
	t.Logf("stock %+v, imagepin %+v", stock, ours)
	if ours.pulls > stock.pulls {
		t.Errorf("%d pulls: got %d writes, want at most %d, as with stock", concurrentImages, ours.pulls, stock.pulls)
	}
	// The records, and the garbage collection. Stock deletes each record in a transaction.
	remove, lease := uint64(2), uint64(0)
	if node.DefaultMode() == node.Serve {
		// Each record is deleted in a transaction, and leases hold images and start garbage collection.
		remove, lease = 6, 4
	}
	if ours.remove != remove {
		t.Errorf("RemoveImage: got %d writes, want %d, with stock %d", ours.remove, remove, stock.remove)
	}
	if ours.create != stock.create+lease {
		t.Errorf("CreateContainer: got %d writes, want %d, with stock %d", ours.create, stock.create+lease, stock.create)
	}
}

func writesImage(i int) string { return fmt.Sprintf("writes/%d:v1", i) }

func countCallWrites(t *testing.T, reg *registry.Registry, o node.Options) (got callWrites) {
	t.Helper()
	ctx := testkit.Context(t)
	n := testkit.Node(t, o)
	writes := func(call func() error) uint64 {
		t.Helper()
		before, err := n.MetadataWrites()
		if err != nil {
			t.Fatal(err)
		}
		if err := call(); err != nil {
			t.Fatal(err)
		}
		after, err := n.MetadataWrites()
		if err != nil {
			t.Fatal(err)
		}
		return after - before
	}
	// The first pull of a boot waits for a collection.
	if _, err := n.Pull(ctx, o.SandboxImage, ""); err != nil {
		t.Fatal(err)
	}
	got.pulls = writes(func() error { return pullFourAtATime(ctx, n, reg) })
	got.remove, got.create = math.MaxUint64, math.MaxUint64
	for i := range countedCalls {
		got.remove = min(got.remove, writes(func() error { return n.RemoveImage(ctx, reg.Ref(writesImage(i+1)), "") }))
	}
	ref := reg.Ref(writesImage(0))
	img, err := n.ImageStatus(ctx, ref, "")
	if err != nil {
		t.Fatal(err)
	}
	pod, err := n.RunPod(ctx, node.PodOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range countedCalls {
		got.create = min(got.create, writes(func() error {
			_, err := n.CreateContainer(ctx, pod, node.ContainerOptions{Image: img.GetId(), UserImage: ref})
			return err
		}))
	}
	return got
}

func pullFourAtATime(ctx context.Context, n *node.Node, reg *registry.Registry) error {
	refs, failed := make(chan string, concurrentImages), make(chan error, concurrentImages)
	for i := range concurrentImages {
		refs <- reg.Ref(writesImage(i))
	}
	close(refs)
	var pulls sync.WaitGroup
	for range 4 {
		pulls.Go(func() {
			for ref := range refs {
				if _, err := n.Pull(ctx, ref, ""); err != nil {
					failed <- err
				}
			}
		})
	}
	pulls.Wait()
	close(failed)
	return <-failed
}
