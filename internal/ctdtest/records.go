package ctdtest

import (
	"context"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	bolt "go.etcd.io/bbolt"
)

// Records is an image store without transactions, like the one over containerd's socket.
type Records struct {
	images.Store
	// Written, if set, is called after each call of Atomically without an error, before its caller knows of it.
	Written func()
}

// Atomically calls fn with the image store.
func (r Records) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	err := fn(ctx, r.Store)
	if err == nil && r.Written != nil {
		r.Written()
	}
	return err
}

// Namespaces creates containerd namespaces in a metadata database.
type Namespaces struct {
	namespaces.Store // nil
	DB               *metadata.DB
}

// Create creates a namespace.
func (n Namespaces) Create(ctx context.Context, name string, labels map[string]string) error {
	return n.DB.Update(func(tx *bolt.Tx) error { return metadata.NewNamespaceStore(tx).Create(ctx, name, labels) })
}
