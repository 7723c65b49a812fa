package reconcile

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// hanging is a snapshotter that does not respond until responds is closed. Until then it lists only a part of its
// snapshots.
type hanging struct {
	snapshots.Snapshotter
	responds chan struct{}
}

func (h hanging) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	if err := h.Snapshotter.Walk(ctx, fn, filters...); err != nil {
		return err
	}
	select {
	case <-h.responds:
		return nil
	default:
		return errors.New("no answer") // after the timeout of the inventory
	}
}

func (h hanging) Stat(ctx context.Context, name string) (snapshots.Info, error) {
	select {
	case <-h.responds: // even if ctx has ended
	default:
		select {
		case <-h.responds:
		case <-ctx.Done():
			return snapshots.Info{}, ctx.Err()
		}
	}
	return patient{h.Snapshotter}.Stat(ctx, name)
}

// patient is a snapshotter that responds however busy the machine is: it ignores the timeout of Stat.
type patient struct{ snapshots.Snapshotter }

func (p patient) Stat(ctx context.Context, name string) (snapshots.Info, error) {
	return p.Snapshotter.Stat(context.WithoutCancel(ctx), name)
}

// syncs are the digests of the calls of Sync. It retains nothing.
type syncs chan digest.Digest

func (s syncs) Sync(_ context.Context, roots ...digest.Digest) error {
	for _, root := range roots {
		s <- root
	}
	return nil
}

func (s syncs) SyncAll(context.Context) error { return nil }

// leasing is a maker that only leases images, however busy the machine is: it ignores the timeout of the adoption. It
// passes what is to be unpacked to unpacks, and does not unpack it.
type leasing struct {
	Maker
	node    *ctdtest.Node
	store   *store.Store
	unpacks chan imagepin.Entry
	// before runs before images are leased, if it is not nil.
	before *func()
}

func (l leasing) WithLease(ctx context.Context, entries []imagepin.Entry, fn func(context.Context) error) error {
	if before := *l.before; before != nil {
		before()
	}
	return lease.With(context.WithoutCancel(ctx), l.node.Leases, lease.Pull, func(ctx context.Context) error {
		if err := l.store.AddToLease(ctx, entries...); errdefs.IsNotFound(err) {
			return nil
		} else if err != nil {
			return err
		}
		return fn(ctx)
	})
}

func (l leasing) Unpack(ctx context.Context, e imagepin.Entry, _ func(context.Context, imagepin.Entry) error) error {
	l.unpacks <- e
	<-ctx.Done()
	return ctx.Err()
}

// hangingNode is a node with the default snapshotter first, and the snapshotter second, which hangs.
type hangingNode struct {
	*ctdtest.Node
	*Reconciler
	ctx      context.Context // with a lease
	store    *store.Store
	adopted  syncs
	unpacks  chan imagepin.Entry
	responds chan struct{}
	before   func() // before images are leased
}

func newHangingNode(t *testing.T) *hangingNode {
	t.Helper()
	n := ctdtest.New(t, "first", "second")
	runtimes := ctdtest.Runtimes(t, "first", runtimeplatform.Handler{Name: "other", Snapshotter: "second"})
	h := &hangingNode{Node: n, adopted: make(syncs, 10), unpacks: make(chan imagepin.Entry, 10), responds: make(chan struct{})}
	c := storeConfig(n, runtimes)
	c.Snapshotter = func(name string) snapshots.Snapshotter {
		if name == "second" {
			return hanging{n.Snapshotter(name), h.responds}
		}
		return patient{n.Snapshotter(name)}
	}
	h.store = store.New(c)
	h.Reconciler = reconcilerOf(n, c, h.store)
	h.config.Retained, h.config.Maker = h.adopted, leasing{node: n, store: h.store, unpacks: h.unpacks, before: &h.before}
	h.unanswered.timeout = 20 * time.Millisecond
	ctx, done := n.Lease(t)
	h.ctx = ctx
	t.Cleanup(done)
	return h
}

// add adds an image that another tool has unpacked.
func (h *hangingNode) add(t *testing.T, name string, snapshotters ...string) ctdtest.Image {
	t.Helper()
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", name, nil)
	h.Write(h.ctx, t, blobs)
	h.Keep(h.ctx, t, img, nil)
	for _, sn := range snapshotters {
		h.Unpack(h.ctx, t, img, sn)
	}
	_, err := h.Images.Create(h.ctx, images.Image{Name: name, Target: img.Manifest})
	noError(t, err)
	return img
}

// run runs the reconciler until the end of the test, and waits until the index is built.
func (h *hangingNode) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(h.Context(t))
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- h.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		noError(t, <-ended)
	})
	receive(t, ready)
}

// receive waits for a value. It fails the test if none arrives.
func receive[T any](t *testing.T, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(time.Minute):
		t.Fatal("nothing has happened after a minute")
	}
	return v
}

// wantTargets checks for how many targets an image has keys.
func (h *hangingNode) wantTargets(t *testing.T, name string, want int) {
	t.Helper()
	if got := h.store.ByRef(name); len(got) != want {
		t.Errorf("%s: got keys %+v, want %d", name, got, want)
	}
}

// TestListingWithHangingSnapshotter starts, and lists images again while calls are served. The index is built although a
// snapshotter does not respond to any call. The image that is unpacked there is adopted when it responds.
func TestListingWithHangingSnapshotter(t *testing.T) {
	for name, first := range map[string]bool{"first start": true, "listing again": false} {
		t.Run(name, func(t *testing.T) {
			h := newHangingNode(t)
			h.add(t, goodRef, "first", "second")
			if !first {
				mustRemove(h.ctx, t, h.leftovers)
			}
			h.unanswered.timeout = answerTimeout // nothing waits for it
			h.run(t)
			h.wantTargets(t, goodRef, 1)
			if !first {
				receive(t, h.adopted)
			}
			close(h.responds)
			for range 2 { // its files are compared before it is adopted for the second target
				receive(t, h.adopted)
			}
			h.wantTargets(t, goodRef, 2)
		})
	}
}

// TestEventsWithHangingSnapshotter adds images while a snapshotter does not respond. They are adopted for the other
// snapshotter. When the snapshotter responds, they are adopted for it too, without another event.
func TestEventsWithHangingSnapshotter(t *testing.T) {
	h := newHangingNode(t)
	h.run(t)
	for _, name := range []string{goodRef, longRef} {
		h.add(t, name, "first", "second")
		receive(t, h.adopted)
		h.wantTargets(t, name, 1)
	}
	close(h.responds)
	for range 2 {
		receive(t, h.adopted)
	}
	h.wantTargets(t, goodRef, 2)
	h.wantTargets(t, longRef, 2)
}

// TestSnapshotRemovedWhileSnapshotterHangs removes a snapshot that a key needs while its snapshotter does not respond. The
// key is not ready any more when the snapshotter responds, and its image is unpacked again.
func TestSnapshotRemovedWhileSnapshotterHangs(t *testing.T) {
	h := newHangingNode(t)
	img := h.add(t, goodRef, "first")
	h.run(t)
	e := h.store.ByRef(goodRef)[0]
	e.Target.Snapshotter = "second"
	h.Unpack(h.ctx, t, img, "second")
	_, err := h.store.Put(h.ctx, "", e)
	noError(t, err)
	noError(t, h.Snapshotter("second").Remove(h.ctx, img.ChainID.String()))
	h.add(t, longRef, "first") // its event comes after that of the removal
	receive(t, h.adopted)
	if _, ready := h.store.Get(e.Key); !ready {
		t.Error("the key is not ready, although it is unknown whether its snapshot is gone")
	}
	close(h.responds)
	if got := receive(t, h.unpacks); got.Key != e.Key {
		t.Errorf("got %v to unpack again, want %v", got.Key, e.Key)
	}
	if _, ready := h.store.Get(e.Key); ready {
		t.Error("the key is ready without its snapshot")
	}
}

// TestSnapshotRemovedDuringAdoption removes the snapshot of an image while it is adopted. It is unpacked again for the
// default target, and adopted for another one whose snapshot is there.
func TestSnapshotRemovedDuringAdoption(t *testing.T) {
	h := newHangingNode(t)
	close(h.responds)
	removals := 0
	h.run(t)
	var img ctdtest.Image
	h.before = func() {
		if removals++; removals == 1 {
			noError(t, h.Snapshotter("first").Remove(h.ctx, img.ChainID.String()))
		}
	}
	blobs := ctdtest.Blobs{}
	img = blobs.Image("linux/amd64", goodRef, nil)
	h.Write(h.ctx, t, blobs)
	h.Keep(h.ctx, t, img, nil)
	h.Unpack(h.ctx, t, img, "first")
	h.Unpack(h.ctx, t, img, "second")
	_, err := h.Images.Create(h.ctx, images.Image{Name: goodRef, Target: img.Manifest})
	noError(t, err)
	if got := receive(t, h.unpacks); got.Ref != goodRef || got.Target.Snapshotter != "first" {
		t.Errorf("got %v to unpack, want %s on first", got.Key, goodRef)
	}
	receive(t, h.adopted)
	h.wantTargets(t, goodRef, 1)
}

// TestAdoptionOfIncompleteImage lists images again, of which one lacks a layer that is not unpacked. It is not adopted, and
// does not block the next one.
func TestAdoptionOfIncompleteImage(t *testing.T) {
	h := newHangingNode(t)
	close(h.responds)
	blobs := ctdtest.Blobs{}
	module := blobs.Add("application/wasm", []byte("module"))
	manifest := blobs.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: blobs.AddJSON("application/vnd.wasm.config.v0+json", map[string]any{"architecture": "wasm", "os": "wasip1"}),
		Layers: []ocispec.Descriptor{module},
	})
	h.Write(h.ctx, t, blobs)
	noError(t, images.Walk(h.ctx, images.SetChildrenLabels(h.Content, images.ChildrenHandler(h.Content)), manifest))
	const incomplete = "registry.example/app:0" // is before goodRef in the list
	_, err := h.Images.Create(h.ctx, images.Image{Name: incomplete, Target: manifest})
	noError(t, err)
	noError(t, os.Remove(h.File(module.Digest)))
	h.add(t, goodRef, "first")
	mustRemove(h.ctx, t, h.leftovers)
	h.run(t)
	h.wantTargets(t, goodRef, 1)
	h.wantTargets(t, incomplete, 0)
}

// TestCheckWithHangingSnapshotter checks that a check reports which snapshotter does not respond.
func TestCheckWithHangingSnapshotter(t *testing.T) {
	h := newHangingNode(t)
	h.add(t, goodRef)
	h.add(t, longRef)
	report, err := h.Check(h.ctx, nil)
	noError(t, err)
	want := []string{goodRef, longRef}
	for _, f := range report.Findings {
		if f.Subject == want[0] && f.Problem == "it is not adopted: snapshotter second does not respond" {
			want = want[1:]
		}
		if len(want) == 0 {
			return
		}
	}
	t.Errorf("got findings %+v, want the snapshotter for %v", report.Findings, want)
}
