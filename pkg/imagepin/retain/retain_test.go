package retain_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
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
	unpacks  func(snapshotter string) bool
	released int
	killed   bool   // simulates a kill before pins are synced
	removed  bool   // all images are removed during a sync
	hangs    string // the snapshotter that does not respond

	transactions lease.Transactions
}

func (e *env) snapshotter(name string) snapshots.Snapshotter {
	if name == e.hangs {
		return ctdtest.Snapshots{Before: ctdtest.Fail("Stat", context.DeadlineExceeded)} // as after the timeout of a call
	}
	return e.node.Snapshotter(name)
}

func newEnv(t *testing.T) *env {
	t.Helper()
	n := ctdtest.New(t, "first", "second")
	e := &env{t: t, ctx: n.Context(t), node: n, leases: n.Leases, transactions: ctdtest.Records{Store: n.Images}}
	e.restart()
	return e
}

// restart replaces the retainer, the pins and the images with new ones, which load the recorded state.
func (e *env) restart() {
	e.t.Helper()
	e.killed = false
	runtimes := ctdtest.Runtimes(e.t, "first",
		runtimeplatform.Handler{Name: "second", Snapshotter: "second"}, runtimeplatform.Handler{Name: "arm", Snapshotter: "first", Platform: "linux/arm64"})
	e.pins = pin.New(pin.Config{
		Images: e.node.Images, Namespaces: ctdtest.Namespaces{DB: e.node.DB},
		Changed: func(ctx context.Context, roots ...digest.Digest) error {
			if e.killed {
				return nil
			}
			return e.Sync(ctx, roots...)
		},
	})
	e.images = store.New(store.Config{
		Records: ctdtest.Records{Store: e.node.Images}, Content: e.node.Content, Leases: e.node.Leases, Snapshotter: e.snapshotter, Runtimes: ctdtest.Always(runtimes),
	})
	images := retain.Images(e.images)
	if e.removed {
		images = removedImages{e.images}
	}
	e.Retainer = retain.New(retain.Config{
		Leases: e.leases, Transactions: e.transactions, Content: e.node.Content, Pins: e.pins, Images: images,
		MaxBytes: func() int64 { return e.maxBytes }, Released: func() { e.released++ }, Unpacks: e.unpacks,
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

// pin pins a tag to the root of an entry and retains it.
func (e *env) pin(name string, entry imagepin.Entry) {
	e.t.Helper()
	if _, err := e.pins.MakeForNamespace(e.ctx, "", id(name), entry.Root, pin.ByOperator, true); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) unpin(name string) {
	e.t.Helper()
	if _, err := e.pins.Remove(e.ctx, id(name)); err != nil {
		e.t.Fatal(err)
	}
}

// wantPresent checks that the content and the snapshot of an entry are all present, or all absent.
func (e *env) wantPresent(what string, entry imagepin.Entry, present bool) {
	e.t.Helper()
	wantEqual(e.t, what, []bool{
		e.node.HasBlob(e.t, entry.Root.Digest), e.node.HasBlob(e.t, entry.Manifest), e.node.HasBlob(e.t, entry.ImageID),
		e.node.HasSnapshot(e.t, entry.Target.Snapshotter, entry.ChainID),
	}, []bool{present, present, present, present})
}

// wantHeld checks whether an entry and its root are retained.
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
		t.Errorf("%s: got %v, want reason RetainLimitReached", what, err)
	}
}

// TestRetain checks that an image without records is retained through garbage collection and a restart, until its pin
// is removed. SyncImage retains an image that becomes ready after its digest was pinned.
func TestRetain(t *testing.T) {
	e := newEnv(t)
	kept, lost := e.image("kept", first), e.image("lost", first)
	e.pin("kept", kept)
	keptToo := e.image("kept", second)
	wantEqual(t, "synced before the image is retained", e.Synced(keptToo), false)
	for _, entry := range []imagepin.Entry{keptToo, lost} {
		if err := e.SyncImage(e.ctx, entry); err != nil {
			t.Fatal(err)
		}
	}
	wantEqual(t, "synced", []bool{e.Synced(kept), e.Synced(keptToo), e.Synced(lost)}, []bool{true, true, true})
	wantEqual(t, "bytes", e.Bytes(), 1000)
	e.remove(kept, keptToo, lost)
	for _, when := range []string{"", " after a restart"} {
		e.wantPresent("retained image"+when, kept, true)
		e.wantPresent("retained image for another target"+when, keptToo, true)
		e.wantPresent("image that is not retained"+when, lost, false)
		e.wantHeld("retained image"+when, kept, true)
		e.wantHeld("image that is not retained"+when, lost, false)
		e.restart()
		e.node.Collect(t)
	}
	wantEqual(t, "bytes after a restart", e.Bytes(), 1000)
	e.unpin("kept")
	e.node.Collect(t)
	e.wantPresent("released image", kept, false)
	e.wantPresent("released image for another target", keptToo, false)
	e.wantHeld("released image", kept, false)
	wantEqual(t, "bytes, releases", []any{e.Bytes(), e.released}, []any{0, 1})
}

// TestPinWithHangingSnapshotter pins a digest that is ready in two snapshotters, of which one does not respond. The image
// is retained in both, also if it is only pinned after a start.
func TestPinWithHangingSnapshotter(t *testing.T) {
	for name, killed := range map[string]bool{"while it runs": false, "at a start": true} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			healthy, other := e.image("kept", first), e.image("kept", second)
			e.hangs, e.killed = "second", killed
			e.pin("kept", healthy)
			if killed {
				e.restart()
			}
			e.wantHeld("the image", healthy, true)
			e.wantHeld("the image in the snapshotter that hangs", other, true)
			e.hangs = ""
			e.remove(healthy, other)
			e.wantPresent("the image", healthy, true)
			e.wantPresent("the image in the snapshotter that hung", other, true)
		})
	}
}

// TestSyncAfterKill checks that a restart syncs pins that were written but not synced before a kill.
func TestSyncAfterKill(t *testing.T) {
	e := newEnv(t)
	a, b, c := e.image("a", first), e.image("b", first), e.image("c", first)
	e.pin("a", a)
	e.pin("b", b)
	e.killed = true
	e.unpin("a")
	e.pin("c", c)
	e.wantHeld("image whose pin was removed", a, true)
	e.wantHeld("image that was pinned", c, false)
	e.restart()
	for _, w := range []struct {
		name  string
		entry imagepin.Entry
		held  bool
	}{{"a", a, false}, {"b", b, true}, {"c", c, true}} {
		e.wantHeld(w.name, w.entry, w.held)
	}
	e.remove(a, b, c)
	e.wantPresent("a", a, false)
	e.wantPresent("b", b, true)
	e.wantPresent("c", c, true)
}

// TestLimit pins more than max_retained_bytes. An image above the limit is not retained and has no lease. The first
// Sync with enough free bytes retains it.
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

// TestReserve reserves bytes for images that are about to be retained. Content that is about to be released counts as
// free.
func TestReserve(t *testing.T) {
	e := newEnv(t)
	e.maxBytes = 2500
	a, b, c := e.image("a", first), e.image("b", first), e.image("c", first)
	e.pin("a", a)
	_, err := e.Reserve("", nil, nil, b, c)
	wantFull(t, "two images above the limit", err)
	release, err := e.Reserve("", nil, nil, a, b, b)
	if err != nil {
		t.Fatalf("reserving for one image and a retained one: %v", err)
	}
	_, err = e.Reserve("", nil, nil, c)
	wantFull(t, "an image besides the reserved one", err)
	e.pin("c", c)
	e.wantHeld("the image without a reservation", c, false)
	e.pin("b", b)
	e.wantHeld("the image with a reservation", b, true)
	release()
	_, err = e.Reserve("", nil, nil, c)
	wantFull(t, "an image besides two retained ones", err)

	freed := func(root digest.Digest) bool { return root == a.Root.Digest }
	if release, err = e.Reserve("", nil, freed, c); err != nil {
		t.Fatalf("reserving the bytes of an image to release: %v", err)
	}
	e.unpin("a")
	if err := e.Sync(e.ctx, c.Root.Digest); err != nil {
		t.Fatal(err)
	}
	release()
	e.wantHeld("the image that replaces a released one", c, true)
	wantEqual(t, "bytes", e.Bytes(), 2000)
	e.maxBytes = 0
	if _, err := e.Reserve("", nil, nil, a, b, c); err != nil {
		t.Errorf("reserving without a limit: %v", err)
	}
}

// TestLimitWithSizesOutOfRange retains images whose recorded sizes are not possible. No size makes room for another image.
func TestLimitWithSizesOutOfRange(t *testing.T) {
	e := newEnv(t)
	e.maxBytes = 1500
	a, b, c := e.image("a", first), e.image("b", first), e.image("c", first)
	e.pin("a", a)
	b.Size = math.MaxInt64
	_, err := e.Reserve("", nil, nil, b)
	wantFull(t, "the largest size", err)
	b.Size = math.MinInt64
	if _, err := e.Reserve("", nil, nil, b); err != nil {
		t.Errorf("the smallest size: %v", err)
	}
	e.pin("b", b)
	if _, err := e.leases.Create(e.ctx, leases.WithID("imagepin-retain-damaged"), leases.WithLabels(map[string]string{
		imagepin.LeaseLabel: "retain", "io.imagepin.retain.root": b.Root.Digest.String(), "io.imagepin.retain.bytes": "-5000",
	})); err != nil {
		t.Fatal(err)
	}
	e.restart()
	wantEqual(t, "bytes", e.Bytes(), 1000)
	_, err = e.Reserve("", nil, nil, c)
	wantFull(t, "an image besides one with a negative size", err)
}

// TestDiscardedLayers checks that an image whose layers are not on the node is retained.
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
	e.wantPresent("the retained image", entry, true)
}

// removedImages are images that were removed after their entries were read.
type removedImages struct{ retain.Images }

func (removedImages) AddReadyToLease(context.Context, ...imagepin.Entry) error {
	return errdefs.ErrNotFound
}

// TestSyncOfRemovedImage checks that Sync skips an image that is removed meanwhile.
func TestSyncOfRemovedImage(t *testing.T) {
	e := newEnv(t)
	entry := e.image("a", first)
	e.removed = true
	e.restart()
	e.pin("a", entry)
	e.wantHeld("a", entry, false)
}

// overwrite changes the first byte of a blob's file.
func (e *env) overwrite(d digest.Digest, with byte) {
	e.t.Helper()
	file := e.node.File(d)
	data, err := os.ReadFile(file)
	if err == nil {
		data[0] = with
		err = os.Chmod(file, 0o600)
	}
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

// twoPlatforms makes an image ready for two platforms.
func (e *env) twoPlatforms(text string) (amd64, arm64 imagepin.Entry) {
	e.t.Helper()
	ctx, done := e.node.Lease(e.t)
	defer done()
	blobs := ctdtest.Blobs{}
	imgs := []ctdtest.Image{blobs.Image("linux/amd64", text, nil), blobs.Image("linux/arm64", text, nil)}
	index := blobs.Index(imgs[0].Manifest, imgs[1].Manifest)
	e.node.Write(ctx, e.t, blobs)
	e.node.Keep(ctx, e.t, imgs[0], &index)
	var entries []imagepin.Entry
	for i, img := range imgs {
		e.node.Keep(ctx, e.t, img, nil)
		e.node.Unpack(ctx, e.t, img, "first")
		target := []ocispec.Descriptor{index, img.Manifest}[i]
		record := repo + "@" + target.Digest.String()
		platform := platforms.Format(*img.Manifest.Platform)
		entries = append(entries, imagepin.Entry{
			Key:    imagepin.Key{Ref: repo + "@" + index.Digest.String(), Target: runtimeplatform.Target{Platform: platform, Snapshotter: "first"}},
			Record: record, RecordTarget: target, Source: imagepin.SourcePull,
			Root: index, Manifest: img.Manifest.Digest, ImageID: img.Config.Digest, ChainID: img.ChainID, Size: 1000,
		})
	}
	if _, err := e.images.Put(ctx, "", entries...); err != nil {
		e.t.Fatal(err)
	}
	return entries[0], entries[1]
}

// TestUnreadableImage pins a digest that is ready for two platforms, of which one has a damaged manifest. That one is not
// retained, which fails only its own update. It is retained when its manifest is repaired.
func TestUnreadableImage(t *testing.T) {
	e := newEnv(t)
	damaged, good := e.twoPlatforms("a")
	e.overwrite(damaged.Manifest, 'x')
	e.pin("a", good)
	wantHeld := func(when string, want bool) {
		t.Helper()
		wantEqual(t, "retained "+when, []bool{e.Holds(good), e.Holds(damaged)}, []bool{true, want})
	}
	wantHeld("after the pin is made", false)
	if err := e.SyncImage(e.ctx, good); err != nil {
		t.Errorf("update of the other image: %v", err)
	}
	if err := e.SyncImage(e.ctx, damaged); err == nil {
		t.Error("update of the damaged image: got no error")
	}
	e.restart()
	wantHeld("after a start", false)
	e.overwrite(damaged.Manifest, '{')
	if err := e.Retry(e.ctx); err != nil {
		t.Fatal(err)
	}
	wantHeld("after the repair", true)
}

// TestTwoRootsOfOneManifest checks that two pins of indexes with the same manifest each retain it.
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
	e.wantHeld("the unpinned index", entry, false)
	e.wantHeld("the pinned index", other, true)
	e.wantPresent("the pinned index", other, true)
}

// TestProofs checks that a pin that retains an image gets its proofs.
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
		t.Fatalf("got proofs %v of the record, want 1", proofs)
	}
	e.pin("a", entry)
	e.remove(entry)
	if !e.pins.HasProof(proofs[0].MAC) {
		t.Error("the pin has no proof")
	}
}

// TestRetry removes a pin, and its lease cannot be deleted. Retry deletes it, and retains an image for which there was no
// room.
func TestRetry(t *testing.T) {
	e := newEnv(t)
	var fails error
	e.leases = ctdtest.Leases{Manager: e.leases, Before: ctdtest.On("Delete", func(string) error { return fails })}
	e.restart()
	e.maxBytes = 1500
	a, b := e.image("a", first), e.image("b", first)
	e.pin("a", a)
	e.pin("b", b)
	fails = errdefs.ErrUnavailable
	if _, err := e.pins.Remove(e.ctx, id("a")); !errdefs.IsUnavailable(err) {
		t.Errorf("removing the pin: got error %v, want Unavailable", err)
	}
	e.wantHeld("image without room", b, false)
	fails = nil
	if err := e.Retry(e.ctx); err != nil {
		t.Fatal(err)
	}
	e.wantHeld("image whose pin was removed", a, false)
	e.wantHeld("image without room before", b, true)
	wantEqual(t, "bytes", e.Bytes(), 1000)
}

// startUnpin removes a pin in the background, and returns when its lease is about to be deleted. finish continues, and
// returns the error of the removal. deletion is the error of the deletion.
func (e *env) startUnpin(name string, deletion error) (finish func() error) {
	reached, free := make(chan struct{}), make(chan struct{})
	e.leases = ctdtest.Leases{Manager: e.leases, Before: ctdtest.On("Delete", func(lease string) error {
		if !strings.HasPrefix(lease, "imagepin-retain-") {
			return nil
		}
		close(reached)
		<-free
		return deletion
	})}
	e.restart()
	removed := make(chan error, 1)
	go func() {
		_, err := e.pins.Remove(e.ctx, id(name))
		removed <- err
	}()
	<-reached
	return func() error {
		close(free)
		return <-removed
	}
}

// TestLeaseDeletionHangs blocks the deletion of a lease, as a snapshotter that hangs does, and checks that methods that
// only use memory return.
func TestLeaseDeletionHangs(t *testing.T) {
	e := newEnv(t)
	e.maxBytes = 2500
	a, b := e.image("a", first), e.image("b", first)
	e.pin("a", a)
	e.pin("b", b)
	finish := e.startUnpin("a", nil)
	release, err := e.Reserve("", nil, nil, b)
	if err != nil {
		t.Fatal(err)
	}
	release()
	wantEqual(t, "bytes", e.Bytes(), 2000)
	wantEqual(t, "pins", len(slices.DeleteFunc(e.pins.List(), func(p pin.Pin) bool { return p.ID != id("b") })), 1)
	e.wantHeld("another image", b, true)
	if err := finish(); err != nil {
		t.Error(err)
	}
	e.wantHeld("the released image", a, false)
}

// TestPinDuringLeaseDeletion creates a pin while the lease of its digest is deleted, because an earlier pin was removed.
func TestPinDuringLeaseDeletion(t *testing.T) {
	for name, deletion := range map[string]error{"succeeds": nil, "fails": errdefs.ErrUnavailable} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			image := e.image("a", first)
			e.pin("a", image)
			finish := e.startUnpin("a", deletion)
			pinned := make(chan struct{})
			go func() {
				defer close(pinned)
				e.pin("b", image)
			}()
			for !e.pins.Retains(image.Root.Digest) {
				runtime.Gosched()
			}
			if err := finish(); !errors.Is(err, deletion) {
				t.Errorf("removing the first pin: got error %v, want %v", err, deletion)
			}
			<-pinned
			e.wantHeld("the pinned image", image, true)
		})
	}
}
