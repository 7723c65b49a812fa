package pull

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/retain"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// layerCache is a snapshotter that has layers by diff ID, like containerd's EROFS snapshotter with
// layer_content_caches. Prepare returns a read-only snapshot with the layer, so that containerd's unpacker neither
// fetches nor applies it.
type layerCache struct {
	snapshots.Snapshotter
	layers map[digest.Digest][]byte
	hits   int
}

func (c *layerCache) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	mounts, err := c.Snapshotter.Prepare(ctx, key, parent, opts...)
	if err != nil {
		return nil, err
	}
	var info snapshots.Info
	for _, opt := range opts {
		if err := opt(&info); err != nil {
			return nil, err
		}
	}
	layer, ok := c.layers[digest.Digest(info.Labels[snapshots.LabelSnapshotDiffID])]
	if !ok {
		return mounts, nil
	}
	c.hits++
	m := mounts[len(mounts)-1]
	mounts[len(mounts)-1].Options = []string{"ro", "rbind"}
	return mounts, os.WriteFile(filepath.Join(m.Source, "layer"), layer, 0o600)
}

// noApplier fails to unpack layers.
type noApplier struct{}

func (noApplier) Apply(context.Context, ocispec.Descriptor, []mount.Mount, ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, errors.New("a layer in the cache must not be unpacked")
}

// pinned is a set of digests that a pin retains.
type pinned []digest.Digest

func (p pinned) Retains(root digest.Digest) bool { return slices.Contains(p, root) }

func (pinned) HasRoot(digest.Digest) bool { return false }

func (p pinned) Retained() []digest.Digest              { return p }
func (p pinned) RetainedBy() map[digest.Digest][]string { return nil }

func (pinned) Prove(context.Context, reference.Named, digest.Digest, ...imagepin.Proof) error {
	return nil
}

// TestLayerCache makes an image ready whose layers are in a snapshotter's cache and never in the content store. The
// image can be checked, loaded, retained, and unpacked again, and no check reports damage.
func TestLayerCache(t *testing.T) {
	n := ctdtest.New(t, "cached")
	runtimes := ctdtest.Runtimes(t, "cached")
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", "app", nil)
	layer := blobs[img.Layer.Digest]
	delete(blobs, img.Layer.Digest)
	cache := &layerCache{Snapshotter: n.Snapshotter("cached"), layers: map[digest.Digest][]byte{digest.FromBytes(layer): layer}}
	snapshotter := func(string) snapshots.Snapshotter { return cache }
	c := store.Config{Records: ctdtest.Records{Store: n.Images}, Content: n.Content, Leases: n.Leases, Snapshotter: snapshotter, Runtimes: ctdtest.Always(runtimes)}
	s := store.New(c)
	retainer := retain.New(retain.Config{
		Leases: n.Leases, Transactions: ctdtest.Records{Store: n.Images}, Content: n.Content, Pins: pinned{img.Manifest.Digest}, Images: s, MaxBytes: func() int64 { return 0 }, Released: func() {},
	})
	locks := &Locks{}
	unpackers := []unpack.Platform{{Platform: platforms.All, SnapshotterKey: "cached", Snapshotter: cache, Applier: noApplier{}}}
	p := New(Config{
		Content: n.Content, Leases: n.Leases, Images: s, Runtimes: ctdtest.Always(runtimes), Retained: retainer, Locks: locks,
		Pins: decide.New(decide.Config{Pins: pin.New(pin.Config{}), Images: s}), Garbage: &fakeGarbage{},
		Settings: ctdtest.Always(&Settings{
			UnpackPlatforms: unpackers, Transfer: NewTransfer(n.Content, n.Leases, unpackers, Limits{Unpacks: 4}, locks),
		}),
	})

	ctx, done := n.Lease(t)
	n.Write(ctx, t, blobs)
	e, manifest, err := DescribeLocal(ctx, n.Content, img.Manifest, runtimes.Default())
	if err != nil {
		t.Fatal(err)
	}
	e.Key = imagepin.Key{Ref: "registry.example/app@" + manifest.Digest.String(), Target: runtimes.Default().Target}
	e.Root, e.RecordTarget, e.Record, e.Source = manifest, manifest, e.Ref, imagepin.SourcePull
	if err := p.Unpack(n.Context(t), e, func(ctx context.Context, e imagepin.Entry) error { _, err := s.Put(ctx, "", e); return err }); err != nil {
		t.Fatal(err)
	}
	done()
	n.Collect(t)
	if cache.hits != 1 || n.HasBlob(t, img.Layer.Digest) || !n.HasSnapshot(t, "cached", img.ChainID) {
		t.Fatalf("got %d cache hits, layer in the content store: %v, want 1, false", cache.hits, n.HasBlob(t, img.Layer.Digest))
	}

	ctx = n.Context(t)
	checkIntact := func(when string) {
		t.Helper()
		lost, err := load(ctx, s, c)
		if err != nil || len(lost) > 0 || len(s.ByRef(e.Ref)) != 1 {
			t.Errorf("%s: load lost %+v, %v", when, lost, err)
		}
		report, err := checkerOf(s, c).Check(ctx, nil)
		if err != nil || report.Checked != 1 || len(report.Findings) > 0 {
			t.Errorf("%s: got findings %+v, %v, want none", when, report.Findings, err)
		}
		if lost, err := s.EvictBlob(ctx, img.Layer.Digest); err != nil || len(lost) > 0 {
			t.Errorf("%s: evicting the layer lost %+v, %v", when, lost, err)
		}
		lack, err := Missing(ctx, n.Content, cache, false, e.Root, runtimes.Default())
		if err != nil || len(lack.Parts) > 0 {
			t.Errorf("%s: got missing parts %+v, %v, want none", when, lack.Parts, err)
		}
	}
	checkIntact("after the first unpack")

	// A removed snapshot is created again from the cache, without a registry.
	if err := n.Snapshotter("cached").Remove(ctx, img.ChainID.String()); err != nil {
		t.Fatal(err)
	}
	lost, err := s.EvictSnapshot(ctx, "cached", img.ChainID.String())
	if err != nil || len(lost) != 1 {
		t.Fatalf("evicting the snapshot lost %+v, %v, want 1 key", lost, err)
	}
	if err := p.Unpack(ctx, e, func(ctx context.Context, e imagepin.Entry) error {
		if repaired, err := s.PutIf(ctx, e, e.Record); err != nil || !repaired {
			t.Errorf("PutIf: repaired %v, %v", repaired, err)
		}
		return nil
	}); err != nil || cache.hits != 2 {
		t.Fatalf("got %d cache hits, %v, want 2", cache.hits, err)
	}
	checkIntact("after the second unpack")

	// Retained content stays when its key is removed.
	if err := retainer.Sync(ctx, e.Root.Digest); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(ctx, e.Key); err != nil {
		t.Fatal(err)
	}
	n.Collect(t)
	if !retainer.Holds(e) || !n.HasBlob(t, e.Manifest) || !n.HasSnapshot(t, "cached", img.ChainID) {
		t.Error("retained content is missing")
	}

	// A layer that is in neither cache nor content store is missing.
	cache.layers = nil
	if err := n.Snapshotter("cached").Remove(ctx, img.ChainID.String()); err != nil {
		t.Fatal(err)
	}
	if err := p.Unpack(ctx, e, func(context.Context, imagepin.Entry) error { return nil }); !errdefs.IsNotFound(err) {
		t.Errorf("without cache and layer: got %v, want a NotFound error", err)
	}
}
