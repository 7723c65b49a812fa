package ctdtest

import (
	"context"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Call is a call to one of containerd's stores.
type Call struct {
	Method string
	// Name is what the call is for: a digest, or the name of a record, lease, resource, snapshot or ingest. It is empty for lists.
	Name string
}

// Before is called before each call to a store, which fails with its error.
type Before func(context.Context, Call) error

// On calls do before calls of one method.
func On(method string, do func(name string) error) Before {
	return func(_ context.Context, c Call) error {
		if c.Method != method {
			return nil
		}
		return do(c.Name)
	}
}

// Fail lets one method fail.
func Fail(method string, err error) Before { return On(method, func(string) error { return err }) }

func (b Before) does(ctx context.Context, method, name string, do func() error) error {
	if err := b(ctx, Call{method, name}); err != nil {
		return err
	}
	return do()
}

func returns[T any](ctx context.Context, b Before, method, name string, do func() (T, error)) (v T, _ error) {
	if err := b(ctx, Call{method, name}); err != nil {
		return v, err
	}
	return do()
}

// Content is a content store with a function before its calls.
type Content struct {
	content.Store
	Before Before
}

func (s Content) Info(ctx context.Context, d digest.Digest) (content.Info, error) {
	return returns(ctx, s.Before, "Info", d.String(), func() (content.Info, error) { return s.Store.Info(ctx, d) })
}

func (s Content) Update(ctx context.Context, info content.Info, fields ...string) (content.Info, error) {
	return returns(ctx, s.Before, "Update", info.Digest.String(), func() (content.Info, error) { return s.Store.Update(ctx, info, fields...) })
}

func (s Content) Walk(ctx context.Context, fn content.WalkFunc, filters ...string) error {
	return s.Before.does(ctx, "Walk", "", func() error { return s.Store.Walk(ctx, fn, filters...) })
}

func (s Content) Delete(ctx context.Context, d digest.Digest) error {
	return s.Before.does(ctx, "Delete", d.String(), func() error { return s.Store.Delete(ctx, d) })
}

func (s Content) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	return returns(ctx, s.Before, "ReaderAt", desc.Digest.String(), func() (content.ReaderAt, error) { return s.Store.ReaderAt(ctx, desc) })
}

func (s Content) Status(ctx context.Context, ref string) (content.Status, error) {
	return returns(ctx, s.Before, "Status", ref, func() (content.Status, error) { return s.Store.Status(ctx, ref) })
}

func (s Content) ListStatuses(ctx context.Context, filters ...string) ([]content.Status, error) {
	return returns(ctx, s.Before, "ListStatuses", "", func() ([]content.Status, error) { return s.Store.ListStatuses(ctx, filters...) })
}

func (s Content) Abort(ctx context.Context, ref string) error {
	return s.Before.does(ctx, "Abort", ref, func() error { return s.Store.Abort(ctx, ref) })
}

func (s Content) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	return returns(ctx, s.Before, "Writer", "", func() (content.Writer, error) { return s.Store.Writer(ctx, opts...) })
}

// Images is an image store with a function before its calls.
type Images struct {
	images.Store
	Before Before
}

func (s Images) Get(ctx context.Context, name string) (images.Image, error) {
	return returns(ctx, s.Before, "Get", name, func() (images.Image, error) { return s.Store.Get(ctx, name) })
}

func (s Images) List(ctx context.Context, filters ...string) ([]images.Image, error) {
	return returns(ctx, s.Before, "List", "", func() ([]images.Image, error) { return s.Store.List(ctx, filters...) })
}

func (s Images) Create(ctx context.Context, img images.Image) (images.Image, error) {
	return returns(ctx, s.Before, "Create", img.Name, func() (images.Image, error) { return s.Store.Create(ctx, img) })
}

func (s Images) Update(ctx context.Context, img images.Image, fields ...string) (images.Image, error) {
	return returns(ctx, s.Before, "Update", img.Name, func() (images.Image, error) { return s.Store.Update(ctx, img, fields...) })
}

func (s Images) Delete(ctx context.Context, name string, opts ...images.DeleteOpt) error {
	return s.Before.does(ctx, "Delete", name, func() error { return s.Store.Delete(ctx, name, opts...) })
}

// Leases is a lease manager with a function before its calls.
type Leases struct {
	leases.Manager
	Before Before
}

func (m Leases) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
	return returns(ctx, m.Before, "Create", "", func() (leases.Lease, error) { return m.Manager.Create(ctx, opts...) })
}

func (m Leases) Delete(ctx context.Context, l leases.Lease, opts ...leases.DeleteOpt) error {
	return m.Before.does(ctx, "Delete", l.ID, func() error { return m.Manager.Delete(ctx, l, opts...) })
}

func (m Leases) List(ctx context.Context, filters ...string) ([]leases.Lease, error) {
	return returns(ctx, m.Before, "List", "", func() ([]leases.Lease, error) { return m.Manager.List(ctx, filters...) })
}

func (m Leases) AddResource(ctx context.Context, l leases.Lease, r leases.Resource) error {
	return m.Before.does(ctx, "AddResource", r.ID, func() error { return m.Manager.AddResource(ctx, l, r) })
}

func (m Leases) DeleteResource(ctx context.Context, l leases.Lease, r leases.Resource) error {
	return m.Before.does(ctx, "DeleteResource", r.ID, func() error { return m.Manager.DeleteResource(ctx, l, r) })
}

func (m Leases) ListResources(ctx context.Context, l leases.Lease) ([]leases.Resource, error) {
	return returns(ctx, m.Before, "ListResources", l.ID, func() ([]leases.Resource, error) { return m.Manager.ListResources(ctx, l) })
}

// Snapshots is a snapshotter with a function before its calls.
type Snapshots struct {
	snapshots.Snapshotter
	Before Before
}

func (s Snapshots) Stat(ctx context.Context, key string) (snapshots.Info, error) {
	return returns(ctx, s.Before, "Stat", key, func() (snapshots.Info, error) { return s.Snapshotter.Stat(ctx, key) })
}

func (s Snapshots) Update(ctx context.Context, info snapshots.Info, fields ...string) (snapshots.Info, error) {
	return returns(ctx, s.Before, "Update", info.Name, func() (snapshots.Info, error) { return s.Snapshotter.Update(ctx, info, fields...) })
}

func (s Snapshots) Usage(ctx context.Context, key string) (snapshots.Usage, error) {
	return returns(ctx, s.Before, "Usage", key, func() (snapshots.Usage, error) { return s.Snapshotter.Usage(ctx, key) })
}

func (s Snapshots) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	return returns(ctx, s.Before, "Mounts", key, func() ([]mount.Mount, error) { return s.Snapshotter.Mounts(ctx, key) })
}

func (s Snapshots) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return returns(ctx, s.Before, "Prepare", key, func() ([]mount.Mount, error) { return s.Snapshotter.Prepare(ctx, key, parent, opts...) })
}

func (s Snapshots) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return returns(ctx, s.Before, "View", key, func() ([]mount.Mount, error) { return s.Snapshotter.View(ctx, key, parent, opts...) })
}

func (s Snapshots) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	return s.Before.does(ctx, "Commit", name, func() error { return s.Snapshotter.Commit(ctx, name, key, opts...) })
}

func (s Snapshots) Remove(ctx context.Context, key string) error {
	return s.Before.does(ctx, "Remove", key, func() error { return s.Snapshotter.Remove(ctx, key) })
}

func (s Snapshots) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	return s.Before.does(ctx, "Walk", "", func() error { return s.Snapshotter.Walk(ctx, fn, filters...) })
}
