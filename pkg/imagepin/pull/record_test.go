package pull

import (
	"context"
	"testing"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// interruptedRecords calls written after each write that succeeded.
type interruptedRecords struct {
	plainRecords
	written func()
}

func (r interruptedRecords) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	err := r.plainRecords.Atomically(ctx, fn)
	if err == nil {
		r.written()
	}
	return err
}

// TestRecordAfterTheCallerGaveUp pins an image, and cancels its pull, when its record
// has been written and the index does not have the key yet. The pull retains it.
func TestRecordAfterTheCallerGaveUp(t *testing.T) {
	d := newDeciding(t)
	ctx, done := d.node.Lease(t)
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	root, img := plainDescriptor(d.roots["old"]), d.images["old"]
	d.Store = store.New(store.Config{
		Records: interruptedRecords{plainRecords{d.node.Images}, func() {
			if _, err := d.node.Images.Get(ctx, d.ref.String()); err != nil {
				return // the image was leased, and is not recorded yet
			}
			id := pin.ID{Scope: policy.NodeScope, Ref: d.ref.String()}
			if _, err := d.Pins.Make(ctx, id, root, pin.ByOperator, true); err != nil {
				t.Error(err)
			}
			if len(d.Store.ByRef(d.ref.String())) != 0 {
				t.Error("the index has the key before its record is written")
			}
			cancel()
		}},
		Content: d.node.Content, Leases: d.node.Leases, Snapshotter: d.node.Snapshotter, Runtimes: d.Runtimes,
	})
	e := imagepin.Entry{
		Key: imagepin.Key{Ref: d.ref.String(), Target: d.own}, Root: root, Manifest: img.Manifest.Digest, ImageID: img.Config.Digest,
		ChainID: img.ChainID, Size: 1, Source: imagepin.SourcePull, RecordTarget: root,
	}
	recorded, _, err := d.record(ctx, job{ref: d.ref, root: root}, e)
	if err != nil {
		t.Fatal(err)
	}
	if ctx.Err() == nil || !d.Retainer.Holds(recorded) {
		t.Errorf("given up: %v, retained: %v", ctx.Err(), d.Retainer.Holds(recorded))
	}
}
