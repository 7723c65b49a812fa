package gcroots

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/gc"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/ctdtest"
)

// node is a containerd whose collections keep what roots hold, with an image that nothing else references.
type node struct {
	*ctdtest.Node
	roots *Roots
	img   ctdtest.Image
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Node: ctdtest.New(t, "first", "second"), roots: New()}
	n.DB.RegisterCollectibleResource(ResourceType, n.roots)
	blobs := ctdtest.Blobs{}
	n.img = blobs.Image("linux/amd64", "a", nil)
	l, err := n.Leases.Create(n.Context(t), leases.WithID("test"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := leases.WithLease(n.Context(t), l.ID)
	n.Write(ctx, t, blobs)
	n.Keep(ctx, t, n.img, nil)
	for _, name := range []string{"first", "second"} {
		n.Unpack(ctx, t, n.img, name)
	}
	return n
}

// abandon removes what else keeps the image.
func (n *node) abandon(t *testing.T) {
	t.Helper()
	if err := n.Leases.Delete(n.Context(t), leases.Lease{ID: "test"}); err != nil {
		t.Fatal(err)
	}
}

func (n *node) manifest() leases.Resource {
	return leases.Resource{ID: n.img.Manifest.Digest.String(), Type: "content"}
}

func (n *node) snapshot() leases.Resource {
	return leases.Resource{ID: n.img.ChainID.String(), Type: "snapshots/first"}
}

// here reports whether the parts of the image exist: manifest, configuration, and the snapshots.
func (n *node) here(t *testing.T) [4]bool {
	t.Helper()
	return [4]bool{
		n.HasBlob(t, n.img.Manifest.Digest), n.HasBlob(t, n.img.Config.Digest),
		n.HasSnapshot(t, "first", n.img.ChainID), n.HasSnapshot(t, "second", n.img.ChainID),
	}
}

// TestHold checks that collections keep what is held and what it references, until the last holder releases it.
func TestHold(t *testing.T) {
	n := newNode(t)
	hold := func(ctx context.Context, resources ...leases.Resource) func() {
		t.Helper()
		release, err := n.roots.Hold(ctx, resources...)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	snapshot := hold(n.Context(t), n.snapshot())
	one, two := hold(n.Context(t), n.manifest(), n.snapshot()), hold(n.Context(t), n.manifest(), n.snapshot())
	defer hold(n.InNamespace(t, "other"), n.manifest(), n.snapshot())()
	n.abandon(t)
	for _, step := range []struct {
		what string
		do   func()
		want [4]bool
	}{
		{"two holders", func() {}, [4]bool{true, true, true, true}},
		{"one holder", one, [4]bool{true, true, true, true}},
		{"released twice", one, [4]bool{true, true, true, true}},
		{"a snapshot is held", two, [4]bool{false, false, true, false}},
		{"released", snapshot, [4]bool{}},
	} {
		step.do()
		n.Collect(t)
		if got := n.here(t); got != step.want {
			t.Errorf("%s: manifest, configuration and snapshots exist: %v, want %v", step.what, got, step.want)
		}
	}
	if len(n.roots.held) != 2 {
		t.Errorf("held: %v, want the two of the other namespace", n.roots.held)
	}
}

func TestHoldOtherType(t *testing.T) {
	n := newNode(t)
	if _, err := n.roots.Hold(n.Context(t), n.manifest(), leases.Resource{ID: "a", Type: "ingests"}); !errdefs.IsNotImplemented(err) {
		t.Errorf("got %v, want ErrNotImplemented", err)
	}
	if len(n.roots.held) != 0 {
		t.Errorf("held: %v, want none", n.roots.held)
	}
}

// TestHoldDuringCollection checks that Hold waits for the collections that have begun, also if they overlap or fail, and
// that the wait ends with the caller's context.
func TestHoldDuringCollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{roots: New()}
		ctx := namespaces.WithNamespace(t.Context(), ctdtest.Namespace)
		first, err := n.roots.StartCollection(ctx)
		if err != nil {
			t.Fatal(err)
		}
		second, err := n.roots.StartCollection(ctx)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		var calls sync.WaitGroup
		calls.Go(func() {
			if _, err := n.roots.Hold(ctx, leases.Resource{ID: "a", Type: "content"}); err != nil || time.Since(begin) != 2*time.Second {
				t.Errorf("got %v after %s, want no error after 2s", err, time.Since(begin))
			}
		})
		calls.Go(func() {
			gone := errors.New("gone")
			late, cancel := context.WithTimeoutCause(ctx, time.Second/2, gone)
			defer cancel()
			if _, err := n.roots.Hold(late, leases.Resource{ID: "b", Type: "content"}); !errors.Is(err, gone) {
				t.Errorf("got %v, want %v", err, gone)
			}
		})
		time.Sleep(time.Second)
		if err := first.Finish(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err := second.Cancel(); err != nil {
			t.Error(err)
		}
		calls.Wait()
		want := gc.Node{Type: metadata.ResourceContent, Namespace: ctdtest.Namespace, Key: "a"}
		if len(n.roots.held) != 1 || n.roots.held[want] != 1 {
			t.Errorf("held: %v, want %v once", n.roots.held, want)
		}
		second.Active(ctdtest.Namespace, func(gc.Node) { t.Error("the collection has resources of a later holder") })
	})
}

// TestConcurrentCollections holds content that nothing else references while collections run. What exists after Hold must
// exist until the release.
func TestConcurrentCollections(t *testing.T) {
	n := newNode(t)
	ctx, stop := context.WithCancel(n.Context(t))
	var collecting sync.WaitGroup
	collecting.Go(func() {
		for ctx.Err() == nil {
			n.Collect(t)
		}
	})
	var calls sync.WaitGroup
	for caller := range 4 {
		calls.Go(func() {
			for i := range 15 {
				blobs := ctdtest.Blobs{}
				blob := blobs.Add("application/octet-stream", fmt.Appendf(nil, "%d %d", caller, i)).Digest
				n.Write(n.Context(t), t, blobs)
				release, err := n.roots.Hold(n.Context(t), leases.Resource{ID: blob.String(), Type: "content"})
				if err != nil {
					t.Error(err)
					return
				}
				if n.HasBlob(t, blob) {
					n.Collect(t)
					if !n.HasBlob(t, blob) {
						t.Errorf("%d %d: collected while it was held", caller, i)
					}
				}
				release()
			}
		})
	}
	calls.Wait()
	stop()
	collecting.Wait()
}
