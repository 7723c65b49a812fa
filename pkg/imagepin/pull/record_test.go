package pull

import (
	"context"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/retain"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// latePin is a pin that does not exist at first.
type latePin struct {
	pinned
	exists bool
}

func (p *latePin) Retains(root digest.Digest) bool { return p.exists && p.pinned.Retains(root) }

func (*latePin) HasRoot(digest.Digest) bool { return false }

// TestRecordAfterTheCallerGaveUp pins an image and cancels its pull when the record is written and the index does not
// have the key yet. The pull retains the image.
func TestRecordAfterTheCallerGaveUp(t *testing.T) {
	n := ctdtest.New(t, "native")
	runtimes := ctdtest.Runtimes(t, "native")
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", "app", nil)
	ref, err := reference.ParseNormalizedNamed("registry.example/app:v1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, done := n.Lease(t)
	defer done()
	n.Write(ctx, t, blobs)
	n.Unpack(ctx, t, img, "native")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	pins := &latePin{pinned: pinned{img.Manifest.Digest}}
	var s *store.Store
	s = store.New(store.Config{
		Records: ctdtest.Records{Store: n.Images, Written: func() {
			if len(s.ByRef(ref.String())) != 0 {
				t.Error("the index has the key before its record is written")
			}
			pins.exists = true
			cancel()
		}},
		Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter, Runtimes: ctdtest.Always(runtimes),
	})
	retainer := retain.New(retain.Config{
		Leases: n.Leases, Transactions: ctdtest.Records{Store: n.Images}, Content: n.Content, Pins: pins, Images: s, MaxBytes: func() int64 { return 0 }, Released: func() {},
	})
	m := New(Config{Images: s, Retained: retainer, Pins: decide.New(decide.Config{Pins: pin.New(pin.Config{}), Images: s})})

	e := imagepin.Entry{
		Key: imagepin.Key{Ref: ref.String(), Target: runtimes.Default().Target}, Root: img.Manifest, Manifest: img.Manifest.Digest,
		ImageID: img.Config.Digest, ChainID: img.ChainID, Size: 1, Source: imagepin.SourcePull, RecordTarget: img.Manifest,
	}
	recorded, _, err := m.record(ctx, Job{Verdict: decide.Verdict{Ref: ref, Root: img.Manifest}}, e)
	if err != nil {
		t.Fatal(err)
	}
	if ctx.Err() == nil || !retainer.Holds(recorded) {
		t.Errorf("got a context that ended: %v, a retained image: %v, want true, true", ctx.Err() != nil, retainer.Holds(recorded))
	}
}

// TestRecordWithHangingSnapshotter pulls an image that a pin retains. It is ready in another snapshotter too, which does
// not respond. The pull retains the image, and a later pull has nothing to do.
func TestRecordWithHangingSnapshotter(t *testing.T) {
	n := ctdtest.New(t, "native", "other")
	runtimes := ctdtest.Runtimes(t, "native")
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", "app", nil)
	ref, err := reference.ParseNormalizedNamed("registry.example/app:v1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, done := n.Lease(t)
	defer done()
	n.Write(ctx, t, blobs)
	n.Unpack(ctx, t, img, "native")
	n.Unpack(ctx, t, img, "other")
	s := store.New(store.Config{
		Records: ctdtest.Records{Store: n.Images}, Content: n.Content, Leases: n.Leases, Runtimes: ctdtest.Always(runtimes),
		Snapshotter: func(name string) snapshots.Snapshotter {
			if name == "other" {
				return ctdtest.Snapshots{Before: ctdtest.Fail("Stat", context.DeadlineExceeded)} // as after the timeout of a call
			}
			return n.Snapshotter(name)
		},
	})
	retainer := retain.New(retain.Config{
		Leases: n.Leases, Transactions: ctdtest.Records{Store: n.Images}, Content: n.Content, Pins: pinned{img.Manifest.Digest}, Images: s, MaxBytes: func() int64 { return 0 }, Released: func() {},
	})
	m := New(Config{Images: s, Retained: retainer, Pins: decide.New(decide.Config{Pins: pin.New(pin.Config{}), Images: s})})
	e := imagepin.Entry{
		Key: imagepin.Key{Ref: ref.String(), Target: runtimes.Default().Target}, Root: img.Manifest, Manifest: img.Manifest.Digest,
		ImageID: img.Config.Digest, ChainID: img.ChainID, Size: 1, Source: imagepin.SourcePull, RecordTarget: img.Manifest,
	}
	other := e
	other.Ref = "registry.example/other@" + img.Manifest.Digest.String()
	other.Record, other.Target.Snapshotter = other.Ref, "other"
	if _, err := s.Put(ctx, "", other); err != nil {
		t.Fatal(err)
	}
	job := Job{Verdict: decide.Verdict{Ref: ref, Root: img.Manifest}}
	recorded, _, err := m.record(ctx, job, e)
	if err != nil {
		t.Fatal(err)
	}
	if !retainer.Holds(recorded) {
		t.Error("the image is not retained")
	}
	if _, ok, err := m.recorded(ctx, job, e); err != nil || !ok {
		t.Errorf("later pull: got nothing to do %v, %v, want true", ok, err)
	}
}
