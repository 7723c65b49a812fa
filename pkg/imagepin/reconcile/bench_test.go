package reconcile

import (
	"context"
	"fmt"
	"testing"

	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/typeurl/v2"
	bolt "go.etcd.io/bbolt"

	eventsapi "github.com/containerd/containerd/api/events"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// adopted returns a reconciler of a node with adopted images, and their names.
func adopted(b *testing.B, count int) (context.Context, *Reconciler, []string) {
	n := ctdtest.New(b, "first")
	runtimes := ctdtest.Runtimes(b, "first")
	s := store.New(storeConfig(n, runtimes))
	ctx := n.Context(b)
	var names []string
	err := n.DB.Update(func(tx *bolt.Tx) error {
		ctx := boltutil.WithTransaction(ctx, tx)
		for i := range count {
			blobs := ctdtest.Blobs{}
			img := blobs.Image("linux/amd64", fmt.Sprint("image ", i), nil)
			n.Write(ctx, b, blobs)
			n.Keep(ctx, b, img, nil)
			n.Unpack(ctx, b, img, "first")
			names = append(names, fmt.Sprintf("registry.example/team/app%d:1", i))
			if _, err := n.Images.Create(ctx, images.Image{Name: names[i], Target: img.Manifest}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	r := reconcilerOf(n, storeConfig(n, runtimes), s)
	loaded, err := r.load(ctx)
	if err != nil {
		b.Fatal(err)
	}
	if err := r.adopter.adoptAll(ctx, loaded.unkeyed, loaded.have); err != nil {
		b.Fatal(err)
	}
	if got := len(s.Images()); got != count {
		b.Fatalf("adopted %d images, want %d", got, count)
	}
	return ctx, r, names
}

// BenchmarkHandleEvent measures an event of an image record without differences.
func BenchmarkHandleEvent(b *testing.B) {
	const count = 100
	ctx, r, names := adopted(b, count)
	var all []*events.Envelope
	for _, name := range names {
		event, err := typeurl.MarshalAny(&eventsapi.ImageUpdate{Name: name})
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, &events.Envelope{Namespace: ctdtest.Namespace, Topic: "/images/update", Event: event})
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		r.handleEvent(ctx, all[i%count])
		i++
	}
}

// BenchmarkAdopt measures the adoption of an image that is already recorded.
func BenchmarkAdopt(b *testing.B) {
	const count = 100
	ctx, r, names := adopted(b, count)
	all, err := r.config.Records.List(ctx, "name=="+names[0])
	if err != nil || len(all) != 1 {
		b.Fatalf("got records %v, %v, want 1", all, err)
	}
	inventory, err := r.config.Checker.Inventory(ctx)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := r.adopter.adoptAll(ctx, all, inventory); err != nil {
			b.Fatal(err)
		}
	}
}
