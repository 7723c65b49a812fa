package pull

import (
	"context"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/keyed"
)

// Locks keep pulls, uses and removals of one node apart. The zero value is ready for use.
type Locks struct {
	blobs  keyed.Mutex   // of blobs and snapshots that are being written
	images keyed.RWMutex // by reference: read while in use, written to remove
}

// ForUse keeps what references mean from removal until unlock is called.
func (l *Locks) ForUse(ctx context.Context, refs ...string) (unlock func(), _ error) {
	return l.images.RLock(ctx, refs...)
}

// ForRemoval waits until nothing uses or pulls references, and keeps it so until unlock is called.
func (l *Locks) ForRemoval(ctx context.Context, refs ...string) (unlock func(), _ error) {
	return l.images.Lock(ctx, refs...)
}

// blob makes the caller the only one that writes a blob until unlock is called. The key is the one of containerd's
// unpacker (core/unpack/unpacker.go).
func (l *Locks) blob(ctx context.Context, d digest.Digest) (unlock func(), _ error) {
	key := "blob://" + d.String()
	if err := l.blobs.Lock(ctx, key); err != nil {
		return nil, err
	}
	return func() { l.blobs.Unlock(key) }, nil
}
