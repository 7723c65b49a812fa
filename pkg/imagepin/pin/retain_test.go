package pin

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

var (
	first  = runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "first"}
	second = runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "second"}
)

// put makes an image ready on the node under a lease, and gives its entry.
func put(ctx context.Context, t *testing.T, n *ctdtest.Node, text string, target runtimeplatform.Target) imagepin.Entry {
	t.Helper()
	blobs := ctdtest.Blobs{}
	img := blobs.Image(target.Platform, text, nil)
	index := blobs.Index(img.Manifest)
	n.Write(ctx, t, blobs)
	n.Keep(ctx, t, img, &index)
	n.Unpack(ctx, t, img, target.Snapshotter)
	return imagepin.Entry{
		Key:  imagepin.Key{Ref: ref, Target: target},
		Root: index, Manifest: img.Manifest.Digest, ImageID: img.Config.Digest, ChainID: img.ChainID, Size: 1000,
	}
}

func newRetainer(t *testing.T, n *ctdtest.Node, maxBytes int64) *Retainer {
	t.Helper()
	r := &Retainer{Leases: n.Leases, Content: n.Content, MaxBytes: maxBytes}
	if err := r.Load(n.Context(t)); err != nil {
		t.Fatal(err)
	}
	return r
}

// there tells which parts of an entry are on the node.
func there(t *testing.T, n *ctdtest.Node, e imagepin.Entry) []bool {
	t.Helper()
	return []bool{
		n.HasBlob(t, e.Root.Digest), n.HasBlob(t, e.Manifest), n.HasBlob(t, e.ImageID),
		n.HasSnapshot(t, e.Target.Snapshotter, e.ChainID),
	}
}

func all(is bool) []bool { return []bool{is, is, is, is} }

// TestRetain holds an image that no record names any more, through garbage
// collection and a restart, until it is released.
func TestRetain(t *testing.T) {
	n := ctdtest.New(t, "first", "second")
	r := newRetainer(t, n, 0)
	ctx, drop := n.Lease(t)
	kept, lost := put(ctx, t, n, "kept", first), put(ctx, t, n, "lost", first)
	keptToo := put(ctx, t, n, "kept", second)
	for _, e := range []imagepin.Entry{kept, keptToo, kept} {
		if err := r.Retain(n.Context(t), e); err != nil {
			t.Fatal(err)
		}
	}
	wantEqual(t, "holds", []bool{r.Holds(kept), r.Holds(keptToo), r.Holds(lost)}, []bool{true, true, false})
	wantEqual(t, "bytes", r.Bytes(), 1000)
	drop()
	n.Collect(t)
	wantEqual(t, "what is retained", there(t, n, kept), all(true))
	wantEqual(t, "what is retained for another target", there(t, n, keptToo), all(true))
	wantEqual(t, "what is not", there(t, n, lost), all(false))

	r = newRetainer(t, n, 0)
	wantEqual(t, "bytes after a restart", r.Bytes(), 1000)
	n.Collect(t)
	wantEqual(t, "what is retained after a restart", there(t, n, kept), all(true))
	if err := r.Release(n.Context(t), lost.Root.Digest); err != nil {
		t.Error(err)
	}
	if err := r.Release(n.Context(t), kept.Root.Digest); err != nil {
		t.Fatal(err)
	}
	n.Collect(t)
	wantEqual(t, "what was released", there(t, n, kept), all(false))
	wantEqual(t, "what was released for another target", there(t, n, keptToo), all(false))
	wantEqual(t, "holds", r.Holds(kept), false)
	wantEqual(t, "bytes", r.Bytes(), 0)
}

// TestRetainLimit refuses what would be too much, and holds nothing of it.
func TestRetainLimit(t *testing.T) {
	n := ctdtest.New(t, "first")
	r := newRetainer(t, n, 2500)
	ctx, drop := n.Lease(t)
	defer drop()
	entries := []imagepin.Entry{put(ctx, t, n, "a", first), put(ctx, t, n, "b", first), put(ctx, t, n, "c", first)}
	for _, e := range entries[:2] {
		if err := r.Retain(n.Context(t), e); err != nil {
			t.Fatal(err)
		}
	}
	err := r.Retain(n.Context(t), entries[2])
	var known *imagepin.Error
	if !errors.As(err, &known) || known.Name != imagepin.RetainLimitReached || !errdefs.IsResourceExhausted(err) {
		t.Errorf("one too many: %v", err)
	}
	if err := r.Retain(n.Context(t), entries[0]); err != nil {
		t.Errorf("what is held already: %v", err)
	}
	held, err := n.Leases.List(n.Context(t), `labels."`+imagepin.LeaseLabel+`"==retain`)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "leases", len(held), 2)
	if err := r.Release(n.Context(t), entries[0].Root.Digest); err != nil {
		t.Fatal(err)
	}
	if err := r.Retain(n.Context(t), entries[2]); err != nil {
		t.Errorf("there is room again: %v", err)
	}
}

// TestReleaseAllBut repairs what a kill left between the change of a pin and
// the release of what it had retained.
func TestReleaseAllBut(t *testing.T) {
	n := ctdtest.New(t, "first")
	ctx, drop := n.Lease(t)
	r := newRetainer(t, n, 0)
	entries := []imagepin.Entry{put(ctx, t, n, "a", first), put(ctx, t, n, "b", first), put(ctx, t, n, "c", first)}
	for _, e := range entries {
		if err := r.Retain(n.Context(t), e); err != nil {
			t.Fatal(err)
		}
	}
	drop()
	r = newRetainer(t, n, 0)
	wanted := []digest.Digest{entries[1].Root.Digest}
	for range 2 {
		if err := r.ReleaseAllBut(n.Context(t), func(d digest.Digest) bool { return slices.Contains(wanted, d) }); err != nil {
			t.Fatal(err)
		}
		n.Collect(t)
		for i, e := range entries {
			wantEqual(t, "what is left", there(t, n, e), all(i == 1))
		}
	}
	wantEqual(t, "bytes", r.Bytes(), 1000)
}

// TestRetainHoldsWhatThereIs: layers that were discarded cannot be held, and do
// not keep the rest from being held.
func TestRetainHoldsWhatThereIs(t *testing.T) {
	n := ctdtest.New(t, "first")
	r := newRetainer(t, n, 0)
	ctx, drop := n.Lease(t)
	blobs := ctdtest.Blobs{}
	img := blobs.Image(first.Platform, "discarded", nil)
	delete(blobs, img.Layer.Digest)
	n.Write(ctx, t, blobs)
	n.Unpack(ctx, t, img, "first")
	e := imagepin.Entry{
		Key: imagepin.Key{Ref: ref, Target: first}, Root: img.Manifest, Manifest: img.Manifest.Digest, ImageID: img.Config.Digest, ChainID: img.ChainID,
	}
	if err := r.Retain(n.Context(t), e); err != nil {
		t.Fatal(err)
	}
	drop()
	n.Collect(t)
	wantEqual(t, "what is retained", there(t, n, e), all(true))
	gone := e
	gone.Manifest = digest.FromString("nowhere")
	gone.Root.Digest = gone.Manifest
	if err := r.Retain(n.Context(t), gone); !errdefs.IsNotFound(err) {
		t.Errorf("retaining what is not here: %v", err)
	}
	held, err := n.Leases.List(n.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "leases", len(held), 1)
}

// TestReserve keeps room for what is about to be retained, and counts what is
// let go of before as room.
func TestReserve(t *testing.T) {
	n := ctdtest.New(t, "first")
	r := newRetainer(t, n, 2500)
	ctx, drop := n.Lease(t)
	defer drop()
	a, b, c := put(ctx, t, n, "a", first), put(ctx, t, n, "b", first), put(ctx, t, n, "c", first)
	full := func(what string, err error) {
		t.Helper()
		var known *imagepin.Error
		if !errors.As(err, &known) || known.Name != imagepin.RetainLimitReached || !errdefs.IsResourceExhausted(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := r.Retain(n.Context(t), a); err != nil {
		t.Fatal(err)
	}
	_, err := r.Reserve(nil, b, c)
	full("two, and one is held", err)
	release, err := r.Reserve(nil, a, b, b)
	if err != nil {
		t.Fatalf("one, and one that is held: %v", err)
	}
	full("what is reserved", r.Retain(n.Context(t), c))
	_, err = r.Reserve(nil, c)
	full("what is reserved", err)
	if err := r.Retain(n.Context(t), b); err != nil {
		t.Errorf("what it is reserved for: %v", err)
	}
	release()
	_, err = r.Reserve(nil, c)
	full("what is retained now", err)

	freed := func(root digest.Digest) bool { return root == a.Root.Digest }
	if release, err = r.Reserve(freed, c); err != nil {
		t.Fatalf("one is let go of for it: %v", err)
	}
	full("one is not let go of yet", r.Retain(n.Context(t), c))
	if err := r.Release(n.Context(t), a.Root.Digest); err != nil {
		t.Fatal(err)
	}
	if err := r.Retain(n.Context(t), c); err != nil {
		t.Errorf("one was let go of for it: %v", err)
	}
	release()
	wantEqual(t, "bytes", r.Bytes(), 2000)
	wantEqual(t, "holds", []bool{r.HoldsRoot(a.Root.Digest), r.HoldsRoot(b.Root.Digest), r.HoldsRoot(c.Root.Digest)}, []bool{false, true, true})

	unlimited := newRetainer(t, n, 0)
	if _, err := unlimited.Reserve(nil, a, b, c); err != nil || unlimited.Limited() || !r.Limited() {
		t.Errorf("without a limit: %v", err)
	}
}

// TestRetainTwoRootsOfOneManifest has two pins retain indexes that share a
// manifest: each keeps it for as long as it is there.
func TestRetainTwoRootsOfOneManifest(t *testing.T) {
	n := ctdtest.New(t, "first")
	r := newRetainer(t, n, 0)
	ctx, drop := n.Lease(t)
	e := put(ctx, t, n, "shared", first)
	other := e
	other.Root = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString("another index"), Size: 1}
	for _, e := range []imagepin.Entry{e, other} {
		if err := r.Retain(n.Context(t), e); err != nil {
			t.Fatal(err)
		}
	}
	drop()
	if err := r.Release(n.Context(t), e.Root.Digest); err != nil {
		t.Fatal(err)
	}
	n.Collect(t)
	wantEqual(t, "what the other pin retains, but for its index, which is not there", there(t, n, other), []bool{false, true, true, true})
	wantEqual(t, "holds", []bool{r.Holds(e), r.Holds(other)}, []bool{false, true})
}

// TestRetainOfAPinThatHasGone holds nothing, and tells of what is released.
func TestRetainOfAPinThatHasGone(t *testing.T) {
	n := ctdtest.New(t, "first")
	r := newRetainer(t, n, 0)
	ctx, drop := n.Lease(t)
	defer drop()
	e := put(ctx, t, n, "a", first)
	pinned, released := true, 0
	r.Wanted = func(digest.Digest) bool { return pinned }
	r.Released = func() { released++ }
	for _, pinned = range []bool{false, true, false} {
		if err := r.Retain(n.Context(t), e); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "held while it is pinned", r.Holds(e), pinned)
		if err := r.Release(n.Context(t), e.Root.Digest); err != nil {
			t.Fatal(err)
		}
	}
	wantEqual(t, "releases", released, 1)
}
