package node

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/internal/ctdtest"
)

// TestUninterrupted makes calls whose caller has given up. Writes of image records go on, and reads end.
func TestUninterrupted(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	s := Uninterrupted(Containerd{Records: ctdtest.Records{Store: awareImages{}}, Pins: awareImages{}})
	var img images.Image
	for name, c := range map[string]struct {
		call   func(context.Context) error
		goesOn bool
	}{
		"record created": {func(ctx context.Context) error { _, err := s.Records.Create(ctx, img); return err }, true},
		"record updated": {func(ctx context.Context) error { _, err := s.Records.Update(ctx, img); return err }, true},
		"record deleted": {func(ctx context.Context) error { return s.Records.Delete(ctx, "") }, true},
		"record read":    {func(ctx context.Context) error { _, err := s.Records.Get(ctx, ""); return err }, false},
		"records in order": {func(ctx context.Context) error {
			return s.Records.Atomically(ctx, func(ctx context.Context, store images.Store) error {
				_, err := store.Update(ctx, img)
				return err
			})
		}, true},
		"pin created": {func(ctx context.Context) error { _, err := s.Pins.Create(ctx, img); return err }, true},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.call(canceled)
			if c.goesOn && err != nil || !c.goesOn && !errors.Is(err, context.Canceled) {
				t.Errorf("got error %v, want that it goes on: %t", err, c.goesOn)
			}
		})
	}
}

// awareImages is an image store that fails if the context of a call has ended.
type awareImages struct{ images.Store }

func (awareImages) Create(ctx context.Context, i images.Image) (images.Image, error) {
	return i, ctx.Err()
}

func (awareImages) Update(ctx context.Context, i images.Image, _ ...string) (images.Image, error) {
	return i, ctx.Err()
}

func (awareImages) Delete(ctx context.Context, _ string, _ ...images.DeleteOpt) error {
	return ctx.Err()
}

func (awareImages) Get(ctx context.Context, _ string) (images.Image, error) {
	return images.Image{}, ctx.Err()
}
