package pull

import (
	"context"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/keyed"
)

// Locks keeps pulls, uses and removals on the node apart. The zero value is ready for use.
type Locks struct {
	blobs  keyed.Mutex   // blobs and snapshots that are being written
	images keyed.RWMutex // by reference: read lock for use, write lock for removal
}

// ForUse prevents the removal of what references resolve to, until unlock is called.
func (l *Locks) ForUse(ctx context.Context, refs ...string) (unlock func(), _ error) {
	return l.images.RLock(ctx, refs...)
}

// ForRemoval waits until no reference is in use or being pulled, and prevents both until unlock is called.
func (l *Locks) ForRemoval(ctx context.Context, refs ...string) (unlock func(), _ error) {
	return l.images.Lock(ctx, refs...)
}

// blob locks a blob for writing until unlock is called.
func (l *Locks) blob(ctx context.Context, d digest.Digest) (unlock func(), _ error) {
	key := blobKey(d)
	if err := l.blobs.Lock(ctx, key); err != nil {
		return nil, err
	}
	return func() { l.blobs.Unlock(key) }, nil
}

// ShareBlob implements [download.Locks].
func (l *Locks) ShareBlob(d digest.Digest) (release func()) {
	key := blobKey(d)
	l.blobs.Share(key)
	return func() { l.blobs.Unlock(key) }
}

// blobKey is the same key as in containerd's unpacker (core/unpack/unpacker.go).
func blobKey(d digest.Digest) string { return "blob://" + d.String() }
