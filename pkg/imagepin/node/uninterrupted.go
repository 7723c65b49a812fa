package node

import (
	"context"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// writeTimeout limits a write of metadata. It is longer than containerd's database is busy with other writes.
const writeTimeout = time.Minute

// Uninterrupted returns services of containerd whose writes of metadata go on when their caller gives up: those of image
// records, leases, and labels of content and snapshots. In containerd's process, they do so anyway. Over a socket, the
// caller would not know whether containerd has made the write, and would omit the writes that belong to it.
//
// Reads, downloads and unpacking end with their context, and so does the garbage collection of a synchronous delete.
func Uninterrupted(c Containerd) Containerd {
	c.Records = uninterruptedRecords{uninterruptedImages{c.Records}, c.Records}
	c.Pins = uninterruptedImages{c.Pins}
	c.Content = uninterruptedContent{c.Content}
	c.Leases = uninterruptedLeases{c.Leases}
	of := c.Snapshots
	c.Snapshots = func(name string) snapshots.Snapshotter { return uninterruptedSnapshotter{of(name)} }
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
	var o images.DeleteOptions
	for _, opt := range opts {
		if err := opt(ctx, &o); err != nil {
			return err
		}
	}
	if !o.Synchronous {
		var cancel context.CancelFunc
		ctx, cancel = uninterrupted(ctx)
		defer cancel()
	}
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

type uninterruptedContent struct{ content.Store }

var _ blobs.Checker = uninterruptedContent{}

// Check implements blobs.Checker.
func (c uninterruptedContent) Check(ctx context.Context, d digest.Digest, size int64) error {
	return blobs.Check(ctx, c.Store, d, size)
}

func (c uninterruptedContent) Update(ctx context.Context, info content.Info, fieldpaths ...string) (content.Info, error) {
	ctx, cancel := uninterrupted(ctx)
	defer cancel()
	return c.Store.Update(ctx, info, fieldpaths...)
}

func (c uninterruptedContent) Delete(ctx context.Context, d digest.Digest) error {
	ctx, cancel := uninterrupted(ctx)
	defer cancel()
	return c.Store.Delete(ctx, d)
}

func (c uninterruptedContent) Abort(ctx context.Context, ref string) error {
	ctx, cancel := uninterrupted(ctx)
	defer cancel()
	return c.Store.Abort(ctx, ref)
}

type uninterruptedLeases struct{ leases.Manager }

func (l uninterruptedLeases) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
	ctx, cancel := uninterrupted(ctx)
	defer cancel()
	return l.Manager.Create(ctx, opts...)
}

func (l uninterruptedLeases) Delete(ctx context.Context, lease leases.Lease, opts ...leases.DeleteOpt) error {
	var o leases.DeleteOptions
	for _, opt := range opts {
		if err := opt(ctx, &o); err != nil {
			return err
		}
	}
	if !o.Synchronous {
		var cancel context.CancelFunc
		ctx, cancel = uninterrupted(ctx)
		defer cancel()
	}
	return l.Manager.Delete(ctx, lease, opts...)
}

func (l uninterruptedLeases) AddResource(ctx context.Context, lease leases.Lease, r leases.Resource) error {
	ctx, cancel := uninterrupted(ctx)
	defer cancel()
	return l.Manager.AddResource(ctx, lease, r)
}

func (l uninterruptedLeases) DeleteResource(ctx context.Context, lease leases.Lease, r leases.Resource) error {
	ctx, cancel := uninterrupted(ctx)
	defer cancel()
	return l.Manager.DeleteResource(ctx, lease, r)
}

type uninterruptedSnapshotter struct{ snapshots.Snapshotter }

func (s uninterruptedSnapshotter) Update(ctx context.Context, info snapshots.Info, fieldpaths ...string) (snapshots.Info, error) {
	ctx, cancel := uninterrupted(ctx)
	defer cancel()
	return s.Snapshotter.Update(ctx, info, fieldpaths...)
}
