package reconcile

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
)

// adoptTarget labels the content of an image as containerd does, creates a record of it, and returns its key.
func (d *deepNode) adoptTarget(ctx context.Context, t *testing.T, ref string, target ocispec.Descriptor) imagepin.Entry {
	t.Helper()
	labels := images.SetChildrenLabels(d.Content, images.ChildrenHandler(d.Content))
	noError(t, images.Walk(ctx, images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if !d.HasBlob(t, desc.Digest) {
			return nil, nil // of another platform
		}
		return labels(ctx, desc)
	}), target))
	_, err := d.Images.Create(ctx, images.Image{Name: ref, Target: target})
	noError(t, err)
	loaded, err := d.load(d.ctx)
	noError(t, err)
	noError(t, d.adopter.adoptAll(d.ctx, loaded.unkeyed, loaded.have))
	all := d.store.ByRef(ref)
	if len(all) != 1 || all[0].RecordTarget.Digest != target.Digest {
		t.Fatalf("got keys %+v, want one whose record targets %s", all, target.Digest)
	}
	return all[0]
}

// nested puts an image on the node that an index references by another index, and returns its key and that index.
func (d *deepNode) nested(t *testing.T) (imagepin.Entry, ocispec.Descriptor) {
	t.Helper()
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", "app", nil)
	inner := blobs.Index(img.Manifest)
	outer := blobs.Index(inner)
	ctx, done := d.Lease(t)
	defer done()
	d.Write(ctx, t, blobs)
	d.Unpack(ctx, t, img, "first")
	return d.adoptTarget(ctx, t, "registry.example/nested:1", outer), inner
}

// wasm puts an image on the node whose layer has no media type of a layer, and returns its key and that layer.
func (d *deepNode) wasm(t *testing.T) (imagepin.Entry, ocispec.Descriptor) {
	t.Helper()
	blobs := ctdtest.Blobs{}
	module := blobs.Add("application/wasm", []byte("module"))
	manifest := blobs.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: blobs.AddJSON("application/vnd.wasm.config.v0+json", map[string]any{"architecture": "wasm", "os": "wasip1"}),
		Layers: []ocispec.Descriptor{module},
	})
	ctx, done := d.Lease(t)
	defer done()
	d.Write(ctx, t, blobs)
	return d.adoptTarget(ctx, t, "registry.example/wasm:1", manifest), module
}

// TestDamageBelowIndexAndManifest damages a blob that a key needs and that its label does not name: a nested index, and
// the layer of an image that is not unpacked. A check finds a file that is gone or cut, a deep check also altered bytes.
// A use of the image and a start notice the former, and the key is not ready.
func TestDamageBelowIndexAndManifest(t *testing.T) {
	for what, put := range map[string]func(*deepNode, *testing.T) (imagepin.Entry, ocispec.Descriptor){
		"nested index": (*deepNode).nested, "layer that is not unpacked": (*deepNode).wasm,
	} {
		for damage, do := range map[string]func(*deepNode, *testing.T, digest.Digest){
			"gone":    func(d *deepNode, t *testing.T, blob digest.Digest) { noError(t, os.Remove(d.File(blob))) },
			"cut":     (*deepNode).cut,
			"altered": (*deepNode).flip,
		} {
			t.Run(what+" "+damage, func(t *testing.T) {
				d := newEmptyNode(t)
				e, blob := put(d, t)
				d.wantLost(t, e, "")
				if problems := d.check(t); len(problems) > 0 {
					t.Errorf("intact: deep check: got %q, want no problems", problems)
				}
				do(d, t, blob.Digest)
				if problems := d.check(t); len(problems) != 1 || !strings.HasPrefix(problems[0], e.Key.String()) || !strings.Contains(problems[0], blob.Digest.String()) {
					t.Errorf("deep check: got problems %q, want %s", problems, blob.Digest)
				}
				if ready, err := d.config.Checker.Ready(d.ctx, e); err != nil || ready {
					t.Errorf("the key is ready: %v, %v", ready, err)
				}
				if damage == "altered" {
					d.wantLost(t, e, "")
				} else {
					d.wantLost(t, e, blob.Digest.String())
				}
			})
		}
	}
}

func (d *deepNode) cut(t *testing.T, blob digest.Digest) {
	t.Helper()
	noError(t, os.Chmod(d.File(blob), 0o600))
	noError(t, os.Truncate(d.File(blob), 1))
}

// wantLost checks that a check, a use of the image and a start find that a key lacks a blob, or none if about is empty.
func (d *deepNode) wantLost(t *testing.T, e imagepin.Entry, about string) {
	t.Helper()
	report, err := d.Check(d.ctx, nil)
	noError(t, err)
	lost := slices.ContainsFunc(report.Findings, func(f health.Finding) bool {
		return f.Kind == health.LostKey && f.Loss.Entry.Key == e.Key && strings.Contains(f.Problem, about)
	})
	if lost != (about != "") {
		t.Errorf("check: got findings %+v, want a lost key: %v", report.Findings, about != "")
	}
	if present, err := d.store.Present(d.ctx, e); err != nil || present != (about == "") {
		t.Errorf("present: got %v, %v", present, err)
	}
	loaded, err := d.load(d.ctx)
	noError(t, err)
	if _, ready := d.store.Get(e.Key); ready != (about == "") || len(loaded.losses) > 0 == ready {
		t.Errorf("start: ready %v, losses %+v", ready, loaded.losses)
	}
	for _, l := range loaded.losses {
		if l.Unpackable || l.Unknown || !strings.Contains(l.Reason, about) {
			t.Errorf("start: unexpected loss %+v", l)
		}
	}
}

// TestUseEvictsDamageBelowIndex checks that a use of an image whose nested index is gone removes its key from the index,
// so that a pull fetches it again.
func TestUseEvictsDamageBelowIndex(t *testing.T) {
	d := newEmptyNode(t)
	e, inner := d.nested(t)
	if evicted, err := d.store.EvictBlob(d.ctx, e.RecordTarget.Digest); err != nil || len(evicted) > 0 {
		t.Errorf("intact: got %+v, %v, want nothing evicted", evicted, err)
	}
	noError(t, os.Remove(d.File(inner.Digest)))
	done := d.store.BeginReplace(inner.Digest)
	if evicted, err := d.store.EvictBlob(d.ctx, e.RecordTarget.Digest); err != nil || len(evicted) > 0 {
		t.Errorf("while the nested index is replaced: got %+v, %v, want nothing evicted", evicted, err)
	}
	noError(t, done(d.ctx))
	if evicted, err := d.store.EvictBlob(d.ctx, e.RecordTarget.Digest); err != nil || len(evicted) != 1 || evicted[0].Key != e.Key {
		t.Errorf("got %+v, %v, want the key evicted", evicted, err)
	}
}

// TestDamageThatNoKeyNeeds checks that a check finds damaged content of another platform that an index keeps on the node,
// once, and that the key stays ready.
func TestDamageThatNoKeyNeeds(t *testing.T) {
	d := newEmptyNode(t)
	blobs := ctdtest.Blobs{}
	img, other := blobs.Image("linux/amd64", "app", nil), blobs.Image("linux/arm64", "app", nil)
	index := blobs.Index(img.Manifest, other.Manifest)
	ctx, done := d.Lease(t)
	d.Write(ctx, t, blobs)
	d.Unpack(ctx, t, img, "first")
	e := d.adoptTarget(ctx, t, "registry.example/app:1", index)
	done()
	noError(t, os.Remove(d.File(other.Manifest.Digest)))
	for name, check := range d.checks() {
		report, err := check()
		noError(t, err)
		if len(report.Findings) != 1 || report.Findings[0].Kind != health.DamagedBlob || report.Findings[0].Loss.Blob != other.Manifest.Digest {
			t.Errorf("%s: got %+v, want one finding about %s", name, report.Findings, other.Manifest.Digest)
		}
	}
	if loaded, err := d.load(d.ctx); err != nil || len(loaded.losses) > 0 || len(d.store.ByRef(e.Ref)) != 1 {
		t.Errorf("start: got losses %+v, %v, want none", loaded.losses, err)
	}
}

// TestFindingsOfRetained checks which findings cover a damaged blob that a pin retains: those whose repair fetches it
// again. A finding that only mentions its digest does not.
func TestFindingsOfRetained(t *testing.T) {
	d := newDeepNode(t)
	img := d.images[0]
	l, err := d.Leases.Create(d.ctx, leases.WithID("kept"), leases.WithLabels(map[string]string{
		imagepin.LeaseLabel: "retain", imagepin.LabelPrefix + "retain.root": img.Manifest.Digest.String(),
	}))
	noError(t, err)
	for _, desc := range []digest.Digest{img.Manifest.Digest, img.Config.Digest, img.Layer.Digest} {
		noError(t, d.Leases.AddResource(d.ctx, l, leases.Resource{ID: desc.String(), Type: "content"}))
	}
	d.flip(t, img.Manifest.Digest)
	d.flip(t, img.Config.Digest)
	if problems := d.check(t); len(problems) != 1 || !strings.HasPrefix(problems[0], "registry.example/a:1") {
		t.Errorf("with a key: got %q, want only the lost key", problems)
	}
	e := d.store.ByID(img.Config.Digest)[0]
	_, err = d.store.Remove(d.ctx, e.Key)
	noError(t, err)
	// The record of the other image targets the retained manifest now, and its finding says so.
	other, err := d.Images.Get(d.ctx, "registry.example/b:1")
	noError(t, err)
	other.Target = img.Manifest
	_, err = d.Images.Update(d.ctx, other, "target")
	noError(t, err)
	for _, want := range []digest.Digest{img.Manifest.Digest, img.Config.Digest} {
		if problems := d.check(t); !slices.ContainsFunc(problems, func(p string) bool { return strings.HasPrefix(p, want.String()+": a pin retains it") }) {
			t.Errorf("without a key: got %q, want %s", problems, want)
		}
	}
}
