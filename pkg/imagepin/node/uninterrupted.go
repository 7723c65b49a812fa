package node

import (
	"context"
	"time"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// writeTimeout limits a write of an image record.
const writeTimeout = time.Minute

// Uninterrupted returns services of containerd whose writes of image records, and so of pins, go on when their caller gives
// up. In containerd's process, they do so anyway. Over a socket, the caller would not know whether containerd has made the
// write, and would omit the writes that belong to it.
//
// Everything else ends with its context: a call that fails deletes its lease, and what only the lease held is collected.
func Uninterrupted(c Containerd) Containerd {
	c.Records = uninterruptedRecords{uninterruptedImages{c.Records}, c.Records}
	c.Pins = uninterruptedImages{c.Pins}
	return c
}

// uninterrupted returns a context for one write, which goes on when ctx has ended.
func uninterrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
}

type uninterruptedImages struct{ images.Store }

func (s uninterruptedImages) Create(ctx context.Context, img images.Image) (images.Image, error) {
	ctx, cancel := uninterrupted(ctx)
	defer cancel()
	return s.Store.Create(ctx, img)
}

func (s uninterruptedImages) Update(ctx context.Context, img images.Image, fieldpaths ...string) (images.Image, error) {
	ctx, cancel := uninterrupted(ctx)
	defer cancel()
	return s.Store.Update(ctx, img, fieldpaths...)
}

func (s uninterruptedImages) Delete(ctx context.Context, name string, opts ...images.DeleteOpt) error {
	ctx, cancel := uninterrupted(ctx)
	defer cancel()
	return s.Store.Delete(ctx, name, opts...)
}

type uninterruptedRecords struct {
	uninterruptedImages
	records store.Records
}

// Atomically implements store.Records.
func (r uninterruptedRecords) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	return r.records.Atomically(ctx, func(ctx context.Context, s images.Store) error { return fn(ctx, uninterruptedImages{s}) })
}
