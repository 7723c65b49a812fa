// Package offline writes to the root directory of a stopped containerd with containerd's own packages. A running
// containerd syncs to disk for every image. This package writes hundreds of images in one transaction.
package offline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"

	"github.com/imagepin/imagepin/integration/node"
)

// Snapshotter is the snapshotter of a [Root].
const Snapshotter = "overlayfs"

// Root is the root directory of a stopped containerd.
type Root struct {
	Images    images.Store
	Content   content.Store
	Snapshots snapshots.Snapshotter

	db    *metadata.DB
	blobs string // directory
	close []func() error
}

// Open opens a root directory, which can be empty.
func Open(ctx context.Context, dir string) (_ *Root, err error) {
	files := filepath.Join(dir, "io.containerd.content.v1.content")
	r := &Root{blobs: filepath.Join(files, "blobs")}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("opening root %s: %w", dir, err), r.Close())
		}
	}()
	bolts := filepath.Join(dir, "io.containerd.metadata.v1.bolt")
	if err := os.MkdirAll(bolts, 0o711); err != nil {
		return nil, err
	}
	blobs, err := local.NewStore(files)
	if err != nil {
		return nil, err
	}
	layers, err := overlay.NewSnapshotter(filepath.Join(dir, "io.containerd.snapshotter.v1."+Snapshotter))
	if err != nil {
		return nil, err
	}
	r.close = append(r.close, layers.Close)
	b, err := bolt.Open(filepath.Join(bolts, "meta.db"), 0o644, &bolt.Options{NoSync: true})
	if err != nil {
		return nil, err
	}
	r.close = append(r.close, b.Close)
	r.db = metadata.NewDB(b, blobs, map[string]snapshots.Snapshotter{Snapshotter: layers})
	if err := r.db.Init(namespaces.WithNamespace(ctx, node.Namespace)); err != nil {
		return nil, err
	}
	r.Images, r.Content, r.Snapshots = metadata.NewImageStore(r.db), r.db.ContentStore(), r.db.Snapshotter(Snapshotter)
	return r, nil
}

// Close closes the databases.
func (r *Root) Close() error {
	var errs []error
	for i := len(r.close); i > 0; i-- {
		errs = append(errs, r.close[i-1]())
	}
	r.close = nil
	return errors.Join(errs...)
}

// AtOnce runs fn in one transaction, in the CRI's namespace. No other process has the databases open, so fn can also
// access content and snapshots.
func (r *Root) AtOnce(ctx context.Context, fn func(context.Context) error) error {
	ctx = namespaces.WithNamespace(ctx, node.Namespace)
	return r.db.Update(func(tx *bolt.Tx) error { return fn(boltutil.WithTransaction(ctx, tx)) })
}

// PutBlob adds a blob. It writes the file in place, because containerd adds existing content, such as that of another
// namespace, without a copy.
func (r *Root) PutBlob(ctx context.Context, d ocispec.Descriptor, data []byte, labels map[string]string) error {
	path := filepath.Join(r.blobs, d.Digest.Algorithm().String(), d.Digest.Encoded())
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, data, 0o444); err != nil {
		return err
	}
	w, err := r.Content.Writer(ctx, content.WithRef(d.Digest.String()), content.WithDescriptor(d))
	if err != nil {
		return err
	}
	return errors.Join(w.Commit(ctx, d.Size, d.Digest, content.WithLabels(labels)), w.Close())
}

// Commit commits the snapshot of a chain of layers, unless it exists. The snapshot is empty, because no container uses
// it.
func (r *Root) Commit(ctx context.Context, diffIDs []digest.Digest) error {
	name := ChainID(diffIDs)
	if _, err := r.Snapshots.Stat(ctx, name); err == nil {
		return nil
	}
	parent := ""
	if len(diffIDs) > 1 {
		parent = ChainID(diffIDs[:len(diffIDs)-1])
	}
	key := "extract " + name
	if _, err := r.Snapshots.Prepare(ctx, key, parent); err != nil {
		return err
	}
	return r.Snapshots.Commit(ctx, name, key)
}

// ChainID returns the name of the snapshot of layers.
func ChainID(diffIDs []digest.Digest) string {
	// identity.ChainID modifies its argument.
	return identity.ChainID(append([]digest.Digest(nil), diffIDs...)).String()
}
