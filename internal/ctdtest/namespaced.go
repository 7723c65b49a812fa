package ctdtest

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// namespaced notes calls whose context has no namespace. Stores reject them, but a caller can take the error for the answer that
// there is nothing.
type namespaced struct {
	mu    sync.Mutex
	first string // the first call without a namespace, with its stack
}

// failAtEnd fails a test at its end if there was such a call.
func (n *namespaced) failAtEnd(t testing.TB) {
	t.Cleanup(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.first != "" {
			t.Error(n.first)
		}
	})
}

func (n *namespaced) check(ctx context.Context, call string) {
	if _, ok := namespaces.Namespace(ctx); ok {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.first == "" {
		n.first = fmt.Sprintf("%s was called without a namespace:\n%s", call, debug.Stack())
	}
}

type namespacedContent struct {
	content.Store
	calls *namespaced
}

// Info implements content.Store.
func (s namespacedContent) Info(ctx context.Context, d digest.Digest) (content.Info, error) {
	s.calls.check(ctx, "content.Info")
	return s.Store.Info(ctx, d)
}

// Update implements content.Store.
func (s namespacedContent) Update(ctx context.Context, info content.Info, fields ...string) (content.Info, error) {
	s.calls.check(ctx, "content.Update")
	return s.Store.Update(ctx, info, fields...)
}

// Walk implements content.Store.
func (s namespacedContent) Walk(ctx context.Context, fn content.WalkFunc, filters ...string) error {
	s.calls.check(ctx, "content.Walk")
	return s.Store.Walk(ctx, fn, filters...)
}

// Delete implements content.Store.
func (s namespacedContent) Delete(ctx context.Context, d digest.Digest) error {
	s.calls.check(ctx, "content.Delete")
	return s.Store.Delete(ctx, d)
}

// ReaderAt implements content.Store.
func (s namespacedContent) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	s.calls.check(ctx, "content.ReaderAt")
	return s.Store.ReaderAt(ctx, desc)
}

// Status implements content.Store.
func (s namespacedContent) Status(ctx context.Context, ref string) (content.Status, error) {
	s.calls.check(ctx, "content.Status")
	return s.Store.Status(ctx, ref)
}

// ListStatuses implements content.Store.
func (s namespacedContent) ListStatuses(ctx context.Context, filters ...string) ([]content.Status, error) {
	s.calls.check(ctx, "content.ListStatuses")
	return s.Store.ListStatuses(ctx, filters...)
}

// Abort implements content.Store.
func (s namespacedContent) Abort(ctx context.Context, ref string) error {
	s.calls.check(ctx, "content.Abort")
	return s.Store.Abort(ctx, ref)
}

// Writer implements content.Store.
func (s namespacedContent) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	s.calls.check(ctx, "content.Writer")
	return s.Store.Writer(ctx, opts...)
}

type namespacedImages struct {
	images.Store
	calls *namespaced
}

// Get implements images.Store.
func (s namespacedImages) Get(ctx context.Context, name string) (images.Image, error) {
	s.calls.check(ctx, "images.Get")
	return s.Store.Get(ctx, name)
}

// List implements images.Store.
func (s namespacedImages) List(ctx context.Context, filters ...string) ([]images.Image, error) {
	s.calls.check(ctx, "images.List")
	return s.Store.List(ctx, filters...)
}

// Create implements images.Store.
func (s namespacedImages) Create(ctx context.Context, img images.Image) (images.Image, error) {
	s.calls.check(ctx, "images.Create")
	return s.Store.Create(ctx, img)
}

// Update implements images.Store.
func (s namespacedImages) Update(ctx context.Context, img images.Image, fields ...string) (images.Image, error) {
	s.calls.check(ctx, "images.Update")
	return s.Store.Update(ctx, img, fields...)
}

// Delete implements images.Store.
func (s namespacedImages) Delete(ctx context.Context, name string, opts ...images.DeleteOpt) error {
	s.calls.check(ctx, "images.Delete")
	return s.Store.Delete(ctx, name, opts...)
}

type namespacedLeases struct {
	leases.Manager
	calls *namespaced
}

// Create implements leases.Manager.
func (m namespacedLeases) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
	m.calls.check(ctx, "leases.Create")
	return m.Manager.Create(ctx, opts...)
}

// Delete implements leases.Manager.
func (m namespacedLeases) Delete(ctx context.Context, l leases.Lease, opts ...leases.DeleteOpt) error {
	m.calls.check(ctx, "leases.Delete")
	return m.Manager.Delete(ctx, l, opts...)
}

// List implements leases.Manager.
func (m namespacedLeases) List(ctx context.Context, filters ...string) ([]leases.Lease, error) {
	m.calls.check(ctx, "leases.List")
	return m.Manager.List(ctx, filters...)
}

// AddResource implements leases.Manager.
func (m namespacedLeases) AddResource(ctx context.Context, l leases.Lease, r leases.Resource) error {
	m.calls.check(ctx, "leases.AddResource")
	return m.Manager.AddResource(ctx, l, r)
}

// DeleteResource implements leases.Manager.
func (m namespacedLeases) DeleteResource(ctx context.Context, l leases.Lease, r leases.Resource) error {
	m.calls.check(ctx, "leases.DeleteResource")
	return m.Manager.DeleteResource(ctx, l, r)
}

// ListResources implements leases.Manager.
func (m namespacedLeases) ListResources(ctx context.Context, l leases.Lease) ([]leases.Resource, error) {
	m.calls.check(ctx, "leases.ListResources")
	return m.Manager.ListResources(ctx, l)
}

type namespacedSnapshotter struct {
	snapshots.Snapshotter
	calls *namespaced
}

// Stat implements snapshots.Snapshotter.
func (s namespacedSnapshotter) Stat(ctx context.Context, key string) (snapshots.Info, error) {
	s.calls.check(ctx, "snapshots.Stat")
	return s.Snapshotter.Stat(ctx, key)
}

// Update implements snapshots.Snapshotter.
func (s namespacedSnapshotter) Update(ctx context.Context, info snapshots.Info, fields ...string) (snapshots.Info, error) {
	s.calls.check(ctx, "snapshots.Update")
	return s.Snapshotter.Update(ctx, info, fields...)
}

// Usage implements snapshots.Snapshotter.
func (s namespacedSnapshotter) Usage(ctx context.Context, key string) (snapshots.Usage, error) {
	s.calls.check(ctx, "snapshots.Usage")
	return s.Snapshotter.Usage(ctx, key)
}

// Mounts implements snapshots.Snapshotter.
func (s namespacedSnapshotter) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	s.calls.check(ctx, "snapshots.Mounts")
	return s.Snapshotter.Mounts(ctx, key)
}

// Prepare implements snapshots.Snapshotter.
func (s namespacedSnapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	s.calls.check(ctx, "snapshots.Prepare")
	return s.Snapshotter.Prepare(ctx, key, parent, opts...)
}

// View implements snapshots.Snapshotter.
func (s namespacedSnapshotter) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	s.calls.check(ctx, "snapshots.View")
	return s.Snapshotter.View(ctx, key, parent, opts...)
}

// Commit implements snapshots.Snapshotter.
func (s namespacedSnapshotter) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	s.calls.check(ctx, "snapshots.Commit")
	return s.Snapshotter.Commit(ctx, name, key, opts...)
}

// Remove implements snapshots.Snapshotter.
func (s namespacedSnapshotter) Remove(ctx context.Context, key string) error {
	s.calls.check(ctx, "snapshots.Remove")
	return s.Snapshotter.Remove(ctx, key)
}

// Walk implements snapshots.Snapshotter.
func (s namespacedSnapshotter) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	s.calls.check(ctx, "snapshots.Walk")
	return s.Snapshotter.Walk(ctx, fn, filters...)
}
