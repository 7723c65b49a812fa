// Package ctdtest provides containerd's parts of a node for tests: the metadata database with its image, lease, content
// and snapshot stores, on disk in the test's directory. Only the content of images is artificial.
package ctdtest

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/events/exchange"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"

	"github.com/imagepin/imagepin/internal/upstream"
)

// Namespace is the namespace in the contexts of a Node.
const Namespace = "k8s.io"

// Node is the containerd of one node, without the daemon. Its test fails if a store is called without a namespace.
type Node struct {
	DB      *metadata.DB
	Images  images.Store
	Content content.Store
	Leases  leases.Manager
	Events  *exchange.Exchange
	// Dir is the directory with the node's files.
	Dir string

	snapshotters map[string]snapshots.Snapshotter
}

// New creates a node. snapshotters are the names of its snapshotters, which are all containerd's native one.
func New(t testing.TB, snapshotters ...string) *Node {
	t.Helper()
	return NewOf(t, native.NewSnapshotter, snapshotters...)
}

// NewOf is New with snapshotters of another kind, which open returns for a directory.
func NewOf(t testing.TB, open func(root string) (snapshots.Snapshotter, error), snapshotters ...string) *Node {
	t.Helper()
	dir := t.TempDir()
	n := &Node{Dir: dir, Events: exchange.NewExchange(), snapshotters: make(map[string]snapshots.Snapshotter)}
	plain := make(map[string]snapshots.Snapshotter)
	for _, name := range snapshotters {
		sn, err := open(filepath.Join(dir, "snapshots."+name))
		noError(t, err)
		plain[name] = sn
	}
	blobs, err := local.NewStore(n.ContentDir())
	noError(t, err)
	b, err := bolt.Open(filepath.Join(dir, "metadata.db"), 0o600, &bolt.Options{NoSync: true})
	noError(t, err)
	n.DB = metadata.NewDB(b, blobs, plain, metadata.WithEventsPublisher(n.Events))
	noError(t, n.DB.Init(n.Context(t)))
	t.Cleanup(func() {
		if err := n.DB.Close(); err != nil {
			t.Error(err)
		}
	})
	without := &namespaced{}
	without.failAtEnd(t)
	n.Images = Images{metadata.NewImageStore(n.DB), without.calls("images")}
	n.Content = Content{n.DB.ContentStore(), without.calls("content")}
	n.Leases = Leases{collectingLeases{metadata.NewLeaseManager(n.DB), n.DB}, without.calls("leases")}
	for _, name := range snapshotters {
		n.snapshotters[name] = Snapshots{n.DB.Snapshotter(name), without.calls("snapshots")}
	}
	return n
}

// collectingLeases adds the synchronous deletion of containerd's lease service: Delete collects garbage before it
// returns.
type collectingLeases struct {
	leases.Manager
	db *metadata.DB
}

func (l collectingLeases) Delete(ctx context.Context, lease leases.Lease, opts ...leases.DeleteOpt) error {
	if err := l.Manager.Delete(ctx, lease, opts...); err != nil {
		return err
	}
	var o leases.DeleteOptions
	for _, opt := range opts {
		if err := opt(ctx, &o); err != nil {
			return err
		}
	}
	if !o.Synchronous {
		return nil
	}
	_, err := l.db.GarbageCollect(ctx)
	return err
}

// Context returns the test's context with the CRI's namespace.
func (n *Node) Context(t testing.TB) context.Context {
	return namespaces.WithNamespace(t.Context(), Namespace)
}

// ContentDir returns the directory of the content store.
func (n *Node) ContentDir() string { return filepath.Join(n.Dir, "content") }

// File returns the path of a blob in the content store.
func (n *Node) File(d digest.Digest) string {
	return filepath.Join(n.ContentDir(), upstream.BlobsDir, d.Algorithm().String(), d.Encoded())
}

// InNamespace returns the test's context with another namespace.
func (n *Node) InNamespace(t testing.TB, name string) context.Context {
	return namespaces.WithNamespace(t.Context(), name)
}

// Snapshotter returns a snapshotter by its name.
func (n *Node) Snapshotter(name string) snapshots.Snapshotter { return n.snapshotters[name] }

// Collect runs the garbage collection.
func (n *Node) Collect(t testing.TB) {
	t.Helper()
	_, err := n.DB.GarbageCollect(n.Context(t))
	noError(t, err)
}

// Lease returns a context with a lease, which holds what is created with this context, and a function that deletes the
// lease.
func (n *Node) Lease(t testing.TB) (context.Context, func()) {
	t.Helper()
	ctx := n.Context(t)
	l, err := n.Leases.Create(ctx, leases.WithRandomID())
	noError(t, err)
	return leases.WithLease(ctx, l.ID), func() {
		t.Helper()
		noError(t, n.Leases.Delete(ctx, l))
	}
}

// Write writes blobs to the content store.
func (n *Node) Write(ctx context.Context, t testing.TB, blobs Blobs) {
	t.Helper()
	for d, b := range blobs {
		err := content.WriteBlob(ctx, n.Content, d.String(), bytes.NewReader(b), ocispec.Descriptor{Digest: d, Size: int64(len(b))})
		if err != nil && !errdefs.IsAlreadyExists(err) {
			t.Fatalf("write %s: %v", d, err)
		}
	}
}

// Keep labels the content of img as a pull does: index, if it is not nil, keeps the manifest, and the manifest keeps
// its configuration and layers.
func (n *Node) Keep(ctx context.Context, t testing.TB, img Image, index *ocispec.Descriptor) {
	t.Helper()
	if index != nil {
		only := images.HandlerFunc(func(context.Context, ocispec.Descriptor) ([]ocispec.Descriptor, error) {
			return []ocispec.Descriptor{img.Manifest}, nil
		})
		_, err := images.SetChildrenLabels(n.Content, only)(ctx, *index)
		noError(t, err)
	}
	_, err := images.SetChildrenLabels(n.Content, images.ChildrenHandler(n.Content))(ctx, img.Manifest)
	noError(t, err)
}

// Unpack commits img's snapshot in a snapshotter and labels the configuration to keep it. The snapshot has the files of the layer, or
// another one if the node does not have the layer.
func (n *Node) Unpack(ctx context.Context, t testing.TB, img Image, snapshotter string) {
	t.Helper()
	sn := n.Snapshotter(snapshotter)
	if _, err := sn.Stat(ctx, img.ChainID.String()); err != nil {
		key := "extract " + img.ChainID.String()
		mounts, err := sn.Prepare(ctx, key, "")
		noError(t, err)
		layer, err := content.ReadBlob(ctx, n.Content, img.Layer)
		if err == nil {
			_, err = archive.Apply(ctx, mounts[0].Source, bytes.NewReader(layer))
		} else {
			// Not every file system counts bytes for an empty directory.
			err = os.WriteFile(filepath.Join(mounts[0].Source, "file"), []byte(key), 0o600)
		}
		noError(t, err)
		noError(t, sn.Commit(ctx, img.ChainID.String(), key))
	}
	label := upstream.SnapshotRef + snapshotter
	_, err := n.Content.Update(ctx, content.Info{
		Digest: img.Config.Digest, Labels: map[string]string{label: img.ChainID.String()},
	}, "labels."+label)
	noError(t, err)
}

// HasBlob reports whether the content store has a blob.
func (n *Node) HasBlob(t testing.TB, d digest.Digest) bool {
	t.Helper()
	_, err := n.Content.Info(n.Context(t), d)
	return found(t, err)
}

// HasSnapshot reports whether a snapshotter has a snapshot.
func (n *Node) HasSnapshot(t testing.TB, snapshotter string, chainID digest.Digest) bool {
	t.Helper()
	_, err := n.Snapshotter(snapshotter).Stat(n.Context(t), chainID.String())
	return found(t, err)
}

// Records returns all image records by name.
func (n *Node) Records(t testing.TB) map[string]images.Image {
	t.Helper()
	all, err := n.Images.List(n.Context(t))
	noError(t, err)
	byName := make(map[string]images.Image, len(all))
	for _, img := range all {
		byName[img.Name] = img
	}
	return byName
}

func found(t testing.TB, err error) bool {
	t.Helper()
	if err != nil && !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Always returns a function that returns v.
func Always[T any](v T) func() T { return func() T { return v } }
