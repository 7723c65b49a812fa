package retain_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/retain"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

const repo = "registry.example/team/app"

var (
	first  = runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "first"}
	second = runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "second"}
)

// env is a retainer with the pins and images of a node. Each image counts as 1000 bytes for max_retained_bytes.
type env struct {
	*retain.Retainer
	t        *testing.T
	ctx      context.Context
	node     *ctdtest.Node
	leases   leases.Manager
	pins     *pin.Store
	images   *store.Store
	maxBytes int64
	released int
	killed   bool // the process ends before pins are synced
	removed  bool // all images are removed during a sync
}

// namespaces creates namespaces in a metadata database.
type namespaces struct{ db *metadata.DB }

func (n namespaces) Create(ctx context.Context, name string, labels map[string]string) error {
	return n.db.Update(func(tx *bolt.Tx) error { return metadata.NewNamespaceStore(tx).Create(ctx, name, labels) })
}

// records are image records without transactions.
type records struct{ images.Store }

func (r records) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	return fn(ctx, r.Store)
}

func newEnv(t *testing.T) *env {
	t.Helper()
	n := ctdtest.New(t, "first", "second")
	e := &env{t: t, ctx: n.Context(t), node: n, leases: n.Leases}
	e.restart()
	return e
}

// restart replaces the retainer, the pins and the images with new ones that load the recorded state.
func (e *env) restart() {
	e.t.Helper()
	e.killed = false
	runtimes, err := runtimeplatform.New("runc", []runtimeplatform.Handler{{Name: "runc", Snapshotter: "first"}, {Name: "second", Snapshotter: "second"}},
		runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	if err != nil {
		e.t.Fatal(err)
	}
	e.pins = pin.New(pin.Config{
		Images: e.node.Images, Namespaces: namespaces{e.node.DB},
		Changed: func(ctx context.Context, roots ...digest.Digest) error {
			if e.killed {
				return nil
			}
			return e.Sync(ctx, roots...)
		},
	})
	e.images = store.New(store.Config{
		Records: records{e.node.Images}, Content: e.node.Content, Leases: e.node.Leases, Snapshotter: e.node.Snapshotter, Runtimes: ctdtest.Always(runtimes),
	})
	images := retain.Images(e.images)
	if e.removed {
		images = removedImages{e.images}
	}
	e.Retainer = retain.New(retain.Config{
		Leases: e.leases, Content: e.node.Content, Pins: e.pins, Images: images,
		MaxBytes: func() int64 { return e.maxBytes }, Released: func() { e.released++ },
	})
	if err := e.pins.Load(e.ctx); err != nil {
		e.t.Fatal(err)
	}
	if _, err := e.images.Load(e.ctx, allReady); err != nil {
		e.t.Fatal(err)
	}
	if err := e.SyncAll(e.ctx); err != nil {
		e.t.Fatal(err)
	}
}

func allReady(context.Context) (func(imagepin.Entry) bool, error) {
	return func(imagepin.Entry) bool { return true }, nil
}

// image makes an image ready and records it.
func (e *env) image(text string, target runtimeplatform.Target) imagepin.Entry {
	e.t.Helper()
	ctx, done := e.node.Lease(e.t)
	defer done()
	blobs := ctdtest.Blobs{}
	img := blobs.Image(target.Platform, text, nil)
	index := blobs.Index(img.Manifest)
	e.node.Write(ctx, e.t, blobs)
	e.node.Keep(ctx, e.t, img, &index)
	e.node.Unpack(ctx, e.t, img, target.Snapshotter)
	ref := repo + "@" + index.Digest.String()
	entry := imagepin.Entry{
		Key: imagepin.Key{Ref: ref, Target: target}, Record: ref, RecordTarget: index, Source: imagepin.SourcePull,
		Root: index, Manifest: img.Manifest.Digest, ImageID: img.Config.Digest, ChainID: img.ChainID, Size: 1000,
	}
	if _, err := e.images.Put(ctx, "", entry); err != nil {
		e.t.Fatal(err)
	}
	return entry
}

// remove removes images and runs a garbage collection.
func (e *env) remove(entries ...imagepin.Entry) {
	e.t.Helper()
	for _, entry := range entries {
		if _, err := e.images.Remove(e.ctx, entry.Key); err != nil {
			e.t.Fatal(err)
		}
	}
	e.node.Collect(e.t)
}

func id(name string) pin.ID { return pin.ID{Scope: policy.NodeScope, Ref: repo + ":" + name} }

// pin pins a tag to the root of an entry, and retains it.
func (e *env) pin(name string, entry imagepin.Entry) {
	e.t.Helper()
	if _, err := e.pins.Make(e.ctx, id(name), entry.Root, pin.ByOperator, true); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) unpin(name string) {
	e.t.Helper()
	if _, err := e.pins.Remove(e.ctx, id(name)); err != nil {
		e.t.Fatal(err)
	}
}

// wantThere checks that either all content and the snapshot of an entry exist, or none of it.
func (e *env) wantThere(what string, entry imagepin.Entry, there bool) {
	e.t.Helper()
	wantEqual(e.t, what, []bool{
		e.node.HasBlob(e.t, entry.Root.Digest), e.node.HasBlob(e.t, entry.Manifest), e.node.HasBlob(e.t, entry.ImageID),
		e.node.HasSnapshot(e.t, entry.Target.Snapshotter, entry.ChainID),
	}, []bool{there, there, there, there})
}

func (e *env) wantHeld(what string, entry imagepin.Entry, held bool) {
	e.t.Helper()
	wantEqual(e.t, what, []bool{e.Holds(entry), e.HoldsRoot(entry.Root.Digest)}, []bool{held, held})
}

func wantEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func wantFull(t *testing.T, what string, err error) {
	t.Helper()
	var known *imagepin.Error
	if !errors.As(err, &known) || known.Reason != imagepin.RetainLimitReached || !errdefs.IsResourceExhausted(err) {
		t.Errorf("%s: %v", what, err)
	}
}

// TestRetain retains an image without records through garbage collection and a restart, until its pin is removed. An
// image that becomes ready after its digest was pinned is retained by the next Sync.
func TestRetain(t *testing.T) {
	e := newEnv(t)
	kept, lost := e.image("kept", first), e.image("lost", first)
	e.pin("kept", kept)
	keptToo := e.image("kept", second)
	wantEqual(t, "synced before the image is retained", e.Synced(kept.Root.Digest), false)
	if err := e.Sync(e.ctx, kept.Root.Digest); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "synced", []bool{e.Synced(kept.Root.Digest), e.Synced(lost.Root.Digest)}, []bool{true, true})
	wantEqual(t, "bytes", e.Bytes(), 1000)
	e.remove(kept, keptToo, lost)
	for _, when := range []string{"", " after a restart"} {
		e.wantThere("an image that is retained"+when, kept, true)
		e.wantThere("the same for another target"+when, keptToo, true)
		e.wantThere("an image that is not"+when, lost, false)
		e.wantHeld("an image that is retained"+when, kept, true)
		e.wantHeld("an image that is not"+when, lost, false)
		e.restart()
		e.node.Collect(t)
	}
	wantEqual(t, "bytes after a restart", e.Bytes(), 1000)
	e.unpin("kept")
	e.node.Collect(t)
	e.wantThere("an image that was released", kept, false)
	e.wantThere("the same for another target", keptToo, false)
	e.wantHeld("an image that was released", kept, false)
	wantEqual(t, "bytes, releases", []any{e.Bytes(), e.released}, []any{0, 1})
}

// TestSyncAfterKill restarts after pins and images were written but not synced.
func TestSyncAfterKill(t *testing.T) {
	e := newEnv(t)
	a, b, c := e.image("a", first), e.image("b", first), e.image("c", first)
	e.pin("a", a)
	e.pin("b", b)
	e.killed = true
	e.unpin("a")
	e.pin("c", c)
	e.wantHeld("an image whose pin was removed", a, true)
	e.wantHeld("an image that was pinned", c, false)
	e.restart()
	for _, w := range []struct {
		name  string
		entry imagepin.Entry
		held  bool
	}{{"a", a, false}, {"b", b, true}, {"c", c, true}} {
		e.wantHeld(w.name, w.entry, w.held)
	}
	e.remove(a, b, c)
	e.wantThere("a", a, false)
	e.wantThere("b", b, true)
	e.wantThere("c", c, true)
}

// TestLimit pins more than max_retained_bytes. An image without room is not retained and has no lease. The first Sync
// with enough room retains it.
func TestLimit(t *testing.T) {
	e := newEnv(t)
	e.maxBytes = 2500
	names := []string{"a", "b", "c"}
	entries := make([]imagepin.Entry, len(names))
	for i, name := range names {
		entries[i] = e.image(name, first)
		e.pin(name, entries[i])
	}
	wantHeld := func(when string, want ...bool) {
		t.Helper()
		for i, entry := range entries {
			e.wantHeld(names[i]+when, entry, want[i])
		}
	}
	wantHeld("", true, true, false)
	held, err := e.leases.List(e.ctx, `labels."`+imagepin.LeaseLabel+`"==retain`)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "leases", len(held), 2)
	e.unpin("a")
	wantHeld(" before a Sync", false, true, false)
	if err := e.Sync(e.ctx, entries[2].Root.Digest); err != nil {
		t.Fatal(err)
	}
	wantHeld(" after a Sync", false, true, true)
	e.maxBytes = 0
	e.pin("a", entries[0])
	wantHeld(" without a limit", true, true, true)
}

// TestReserve reserves room for images that are about to be retained. Content that is about to be released counts as
// room.
func TestReserve(t *testing.T) {
	e := newEnv(t)
	e.maxBytes = 2500
	a, b, c := e.image("a", first), e.image("b", first), e.image("c", first)
	e.pin("a", a)
	_, err := e.Reserve(nil, b, c)
	wantFull(t, "two images, and one is held", err)
	release, err := e.Reserve(nil, a, b, b)
	if err != nil {
		t.Fatalf("one image, and one that is held: %v", err)
	}
	_, err = e.Reserve(nil, c)
	wantFull(t, "one more image", err)
	e.pin("c", c)
	e.wantHeld("an image without room besides the reserved one", c, false)
	e.pin("b", b)
	e.wantHeld("the image with reserved room", b, true)
	release()
	_, err = e.Reserve(nil, c)
	wantFull(t, "an image without room besides the held one", err)

	freed := func(root digest.Digest) bool { return root == a.Root.Digest }
	if release, err = e.Reserve(freed, c); err != nil {
		t.Fatalf("room of an image that is released: %v", err)
	}
	e.unpin("a")
	if err := e.Sync(e.ctx, c.Root.Digest); err != nil {
		t.Fatal(err)
	}
	release()
	e.wantHeld("the image in the room of a released one", c, true)
	wantEqual(t, "bytes", e.Bytes(), 2000)
	e.maxBytes = 0
	if _, err := e.Reserve(nil, a, b, c); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

// TestDiscardedLayers retains an image whose layers are not on the node.
func TestDiscardedLayers(t *testing.T) {
	e := newEnv(t)
	blobs := ctdtest.Blobs{}
	img := blobs.Image(first.Platform, "discarded", nil)
	delete(blobs, img.Layer.Digest)
	ctx, done := e.node.Lease(t)
	e.node.Write(ctx, t, blobs)
	e.node.Unpack(ctx, t, img, "first")
	ref := repo + "@" + img.Manifest.Digest.String()
	entry := imagepin.Entry{
		Key: imagepin.Key{Ref: ref, Target: first}, Record: ref, RecordTarget: img.Manifest, Source: imagepin.SourcePull,
		Root: img.Manifest, Manifest: img.Manifest.Digest, ImageID: img.Config.Digest, ChainID: img.ChainID,
	}
	if _, err := e.images.Put(ctx, "", entry); err != nil {
		t.Fatal(err)
	}
	done()
	e.pin("discarded", entry)
	e.remove(entry)
	e.wantThere("the retained image", entry, true)
}

// removedImages are images that were removed after their entries were read.
type removedImages struct{ retain.Images }

func (removedImages) AddToLease(context.Context, ...imagepin.Entry) error { return errdefs.ErrNotFound }

// TestSyncOfRemovedImage skips an image that is removed during a Sync.
func TestSyncOfRemovedImage(t *testing.T) {
	e := newEnv(t)
	entry := e.image("a", first)
	e.removed = true
	e.restart()
	e.pin("a", entry)
	e.wantHeld("a", entry, false)
}

// TestTwoRootsOfOneManifest pins two indexes with the same manifest. Each pin retains it.
func TestTwoRootsOfOneManifest(t *testing.T) {
	e := newEnv(t)
	entry := e.image("shared", first)
	other := entry
	ctx, done := e.node.Lease(t)
	blobs := ctdtest.Blobs{}
	index := ocispec.Index{Manifests: []ocispec.Descriptor{{
		MediaType: ocispec.MediaTypeImageManifest, Digest: entry.Manifest, Platform: &ocispec.Platform{OS: "linux", Architecture: "amd64"},
	}}, Annotations: map[string]string{"of": "another index"}}
	index.SchemaVersion = 2
	other.Root = blobs.AddJSON(ocispec.MediaTypeImageIndex, index)
	other.Ref = repo + "@" + other.Root.Digest.String()
	other.Record, other.RecordTarget = other.Ref, other.Root
	e.node.Write(ctx, t, blobs)
	if _, err := e.images.Put(ctx, "", other); err != nil {
		t.Fatal(err)
	}
	done()
	e.pin("one", entry)
	e.pin("other", other)
	wantEqual(t, "bytes", e.Bytes(), 2000)
	e.remove(entry, other)
	e.unpin("one")
	e.node.Collect(t)
	e.wantHeld("the one", entry, false)
	e.wantHeld("the other", other, true)
	e.wantThere("the other", other, true)
}

// TestProofs adds the proofs of an image to the pin that retains it.
func TestProofs(t *testing.T) {
	e := newEnv(t)
	entry := e.image("a", first)
	ctx, done := e.node.Lease(t)
	defer done()
	proof := "io.imagepin.proof." + strings.Repeat("ab", 16)
	if _, err := e.images.Put(ctx, proof, entry); err != nil {
		t.Fatal(err)
	}
	proofs := e.images.Proofs(entry.Record)
	if len(proofs) != 1 {
		t.Fatalf("the record has the proofs %v", proofs)
	}
	e.pin("a", entry)
	e.remove(entry)
	if !e.pins.HasProof(proofs...) {
		t.Error("the pin has no proof")
	}
}

// stuckLeases block deletions until free is closed.
type stuckLeases struct {
	leases.Manager
	reached, free chan struct{}
}

func (l stuckLeases) Delete(ctx context.Context, lease leases.Lease, opts ...leases.DeleteOpt) error {
	close(l.reached)
	<-l.free
	return l.Manager.Delete(ctx, lease, opts...)
}

// TestLeaseDeletionHangs blocks the deletion of a lease, as a snapshotter that hangs does. Methods that only use memory
// still return.
func TestLeaseDeletionHangs(t *testing.T) {
	e := newEnv(t)
	e.maxBytes = 2500
	a, b := e.image("a", first), e.image("b", first)
	e.pin("a", a)
	e.pin("b", b)
	stuck := stuckLeases{e.leases, make(chan struct{}), make(chan struct{})}
	e.leases = stuck
	e.restart()
	removed := make(chan error, 1)
	go func() {
		_, err := e.pins.Remove(e.ctx, id("a"))
		removed <- err
	}()
	<-stuck.reached
	release, err := e.Reserve(nil, b)
	if err != nil {
		t.Fatal(err)
	}
	release()
	wantEqual(t, "bytes", e.Bytes(), 2000)
	wantEqual(t, "pins", len(slices.DeleteFunc(e.pins.List(), func(p pin.Pin) bool { return p.ID != id("b") })), 1)
	e.wantHeld("another", b, true)
	close(stuck.free)
	if err := <-removed; err != nil {
		t.Error(err)
	}
	e.wantHeld("the released image", a, false)
}
