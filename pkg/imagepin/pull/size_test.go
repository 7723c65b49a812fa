package pull

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// sizedNode is a node with an unpacked image. Manifests of the same content can declare other sizes.
type sizedNode struct {
	*makerNode
	t     *testing.T
	ctx   context.Context // has a lease
	image ctdtest.Image
	pins  *latePin
}

// newSizedNode returns a node on which up to limit bytes may be retained.
func newSizedNode(t *testing.T, limit int64) *sizedNode {
	t.Helper()
	pins := &latePin{}
	n := &sizedNode{makerNode: newMakerNode(t, pins, limit), t: t, pins: pins}
	blobs := ctdtest.Blobs{}
	n.image = blobs.Image("linux/amd64", "app", nil)
	ctx, done := n.Lease(t)
	t.Cleanup(done)
	n.ctx = ctx
	n.Write(ctx, t, blobs)
	n.Unpack(ctx, t, n.image, "native")
	return n
}

// manifest writes a manifest of the image's content that declares the given sizes.
func (n *sizedNode) manifest(config, layer int64) ocispec.Descriptor {
	n.t.Helper()
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: n.image.Config, Layers: []ocispec.Descriptor{n.image.Layer},
	}
	m.Config.Size, m.Layers[0].Size = config, layer
	blobs := ctdtest.Blobs{}
	desc := blobs.AddJSON(ocispec.MediaTypeImageManifest, m)
	n.Write(n.ctx, n.t, blobs)
	return desc
}

// pull makes an image ready whose digest is known. If retain is true, a pin retains the image.
func (n *sizedNode) pull(root ocispec.Descriptor, retain bool) (imagepin.Entry, error) {
	n.t.Helper()
	const tag = "registry.example/app:v1"
	ref, err := reference.ParseNormalizedNamed(tag)
	if err != nil {
		n.t.Fatal(err)
	}
	v := decide.Verdict{Ref: ref, Root: root}
	if retain {
		n.pins.pinned, n.pins.exists = pinned{root.Digest}, true
		v.Pin = &pin.Pin{ID: pin.ID{Scope: "node", Ref: tag}, Root: root, Retain: true}
	}
	e, _, err := n.maker.Make(n.Context(n.t), Job{Verdict: v, Runtime: n.maker.config.Runtimes().Default()})
	return e, err
}

// TestSizesOutOfRange pulls manifests that declare a negative size, or sizes whose sum is out of range, of blobs that are
// on the node and are not fetched. The pull fails with ContentCorrupt, and nothing is recorded or retained.
func TestSizesOutOfRange(t *testing.T) {
	n := newSizedNode(t, 1)
	for name, root := range map[string]ocispec.Descriptor{
		"layer":         n.manifest(n.image.Config.Size, -1<<60),
		"configuration": n.manifest(-1, n.image.Layer.Size),
		"sum":           n.manifest(n.image.Config.Size, math.MaxInt64),
	} {
		for _, retain := range []bool{false, true} {
			e, err := n.pull(root, retain)
			var typed *imagepin.Error
			if !errors.As(err, &typed) || typed.Reason != imagepin.ContentCorrupt {
				t.Errorf("%s, retain %v: got size %d and error %v, want reason ContentCorrupt", name, retain, e.Size, err)
			}
			if got := n.store.ByRoot(root.Digest); len(got) > 0 || n.retainer.HoldsRoot(root.Digest) {
				t.Errorf("%s, retain %v: got entries %+v, retained: %v, want none", name, retain, got, n.retainer.HoldsRoot(root.Digest))
			}
		}
	}
}

// TestSizesOfBlobsOnTheNode uses manifests that declare other sizes of a layer on the node than its own. As with stock
// containerd, they can be pulled and adopted, but the layer counts with its own size, also for max_retained_bytes.
func TestSizesOfBlobsOnTheNode(t *testing.T) {
	for _, declared := range []int64{1, 1 << 60} {
		n := newSizedNode(t, 1)
		root := n.manifest(n.image.Config.Size, declared)
		want := root.Size + n.image.Config.Size + n.image.Layer.Size
		var full *imagepin.Error
		if _, err := n.pull(root, true); !errors.As(err, &full) || full.Reason != imagepin.RetainLimitReached || n.retainer.Bytes() != 0 {
			t.Errorf("declared %d: got error %v, %d bytes retained, want RetainLimitReached, 0", declared, err, n.retainer.Bytes())
		}

		n = newSizedNode(t, want)
		root = n.manifest(n.image.Config.Size, declared)
		if e, err := n.pull(root, true); err != nil || e.Size != want || n.retainer.Bytes() != want {
			t.Errorf("declared %d: got size %d, error %v, %d bytes retained, want size %d", declared, e.Size, err, n.retainer.Bytes(), want)
		}
	}
	n := newSizedNode(t, 1)
	imported := n.manifest(n.image.Config.Size, -1<<60)
	want := imported.Size + n.image.Config.Size + n.image.Layer.Size
	if e, _, err := DescribeLocal(n.ctx, n.Content, imported, n.maker.config.Runtimes().Default()); err != nil || e.Size != want {
		t.Errorf("imported: got size %d, error %v, want %d", e.Size, err, want)
	}
}

// TestSizeOfMissingBlobs counts blobs that are not on the node, such as discarded layers. They count as declared, but a
// negative size does not reduce the total.
func TestSizeOfMissingBlobs(t *testing.T) {
	n := ctdtest.New(t)
	missing := func(size int64) ocispec.Descriptor {
		return ocispec.Descriptor{Digest: digest.FromString("missing"), Size: size}
	}
	got, err := sizeOf(n.Context(t), n.Content, missing(2), missing(-5), ocispec.Descriptor{Digest: "no digest", Size: 3})
	if err != nil || got != 5 {
		t.Errorf("got %d, %v, want 5", got, err)
	}
}
