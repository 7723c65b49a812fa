package node

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"
)

// TestUninterrupted makes calls whose caller has given up. Writes of metadata go on, and no other calls.
func TestUninterrupted(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	s := Uninterrupted(Containerd{
		Records: aware{}, Pins: awareImages{}, Content: awareContent{}, Leases: awareLeases{},
		Snapshots: func(string) snapshots.Snapshotter { return awareSnapshotter{} },
	})
	var (
		img   images.Image
		info  content.Info
		lease leases.Lease
	)
	for name, c := range map[string]struct {
		call   func(context.Context) error
		goesOn bool
	}{
		"record created": {func(ctx context.Context) error { _, err := s.Records.Create(ctx, img); return err }, true},
		"record updated": {func(ctx context.Context) error { _, err := s.Records.Update(ctx, img); return err }, true},
		"record deleted": {func(ctx context.Context) error { return s.Records.Delete(ctx, "") }, true},
		"record deleted, with a collection": {func(ctx context.Context) error {
			return s.Records.Delete(ctx, "", images.SynchronousDelete())
		}, false},
		"record read": {func(ctx context.Context) error { _, err := s.Records.Get(ctx, ""); return err }, false},
		"records in order": {func(ctx context.Context) error {
			return s.Records.Atomically(ctx, func(ctx context.Context, store images.Store) error {
				_, err := store.Update(ctx, img)
				return err
			})
		}, true},
		"pin created":      {func(ctx context.Context) error { _, err := s.Pins.Create(ctx, img); return err }, true},
		"content labeled":  {func(ctx context.Context) error { _, err := s.Content.Update(ctx, info); return err }, true},
		"content deleted":  {func(ctx context.Context) error { return s.Content.Delete(ctx, "") }, true},
		"download aborted": {func(ctx context.Context) error { return s.Content.Abort(ctx, "") }, true},
		"content read":     {func(ctx context.Context) error { _, err := s.Content.Info(ctx, ""); return err }, false},
		"lease created":    {func(ctx context.Context) error { _, err := s.Leases.Create(ctx); return err }, true},
		"lease deleted":    {func(ctx context.Context) error { return s.Leases.Delete(ctx, lease) }, true},
		"lease deleted, with a collection": {func(ctx context.Context) error {
			return s.Leases.Delete(ctx, lease, leases.SynchronousDelete)
		}, false},
		"resource added":    {func(ctx context.Context) error { return s.Leases.AddResource(ctx, lease, leases.Resource{}) }, true},
		"resource deleted":  {func(ctx context.Context) error { return s.Leases.DeleteResource(ctx, lease, leases.Resource{}) }, true},
		"leases listed":     {func(ctx context.Context) error { _, err := s.Leases.List(ctx); return err }, false},
		"snapshot labeled":  {func(ctx context.Context) error { _, err := s.Snapshots("").Update(ctx, snapshots.Info{}); return err }, true},
		"snapshot prepared": {func(ctx context.Context) error { _, err := s.Snapshots("").Prepare(ctx, "", ""); return err }, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.call(canceled)
			if c.goesOn && err != nil || !c.goesOn && !errors.Is(err, context.Canceled) {
				t.Errorf("got error %v, want that it goes on: %t", err, c.goesOn)
			}
		})
	}
}

// These services of containerd fail if the context of a call has ended.
type (
	aware            struct{ awareImages }
	awareImages      struct{ images.Store }
	awareContent     struct{ content.Store }
	awareLeases      struct{ leases.Manager }
	awareSnapshotter struct{ snapshots.Snapshotter }
)

func (aware) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	return fn(ctx, awareImages{})
}

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

func (awareContent) Update(ctx context.Context, i content.Info, _ ...string) (content.Info, error) {
	return i, ctx.Err()
}
func (awareContent) Delete(ctx context.Context, _ digest.Digest) error { return ctx.Err() }
func (awareContent) Abort(ctx context.Context, _ string) error         { return ctx.Err() }
func (awareContent) Info(ctx context.Context, _ digest.Digest) (content.Info, error) {
	return content.Info{}, ctx.Err()
}

func (awareLeases) Create(ctx context.Context, _ ...leases.Opt) (leases.Lease, error) {
	return leases.Lease{}, ctx.Err()
}

func (awareLeases) Delete(ctx context.Context, _ leases.Lease, _ ...leases.DeleteOpt) error {
	return ctx.Err()
}

func (awareLeases) List(ctx context.Context, _ ...string) ([]leases.Lease, error) {
	return nil, ctx.Err()
}

func (awareLeases) AddResource(ctx context.Context, _ leases.Lease, _ leases.Resource) error {
	return ctx.Err()
}

func (awareLeases) DeleteResource(ctx context.Context, _ leases.Lease, _ leases.Resource) error {
	return ctx.Err()
}

func (awareSnapshotter) Update(ctx context.Context, i snapshots.Info, _ ...string) (snapshots.Info, error) {
	return i, ctx.Err()
}

func (awareSnapshotter) Prepare(ctx context.Context, _, _ string, _ ...snapshots.Opt) ([]mount.Mount, error) {
	return nil, ctx.Err()
}
