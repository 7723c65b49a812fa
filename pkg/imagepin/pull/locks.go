package pull

import (
	"context"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/keyed"
)

// Locks keeps pulls, uses and removals on the node apart. The zero value is ready for use.
type Locks struct {
	writes   keyed.Mutex   // blobs and snapshots that are being written, by registry
	replaced keyed.Mutex   // blobs that are being deleted and written again, by digest
	images   keyed.RWMutex // by reference: read lock for use, write lock for removal
}

// ForUse prevents the removal of what references resolve to, until unlock is called.
func (l *Locks) ForUse(ctx context.Context, refs ...string) (unlock func(), _ error) {
	return l.images.RLock(ctx, refs...)
}

// ForRemoval waits until no reference is in use, and prevents uses until unlock is called.
func (l *Locks) ForRemoval(ctx context.Context, refs ...string) (unlock func(), _ error) {
	return l.images.Lock(ctx, refs...)
}

// of returns the locks for what pulls from a registry write. A pull holds them while the registry sends, as slowly as it
// wants, so pulls from other registries do not share them: what two registries send at once is written by both, and
// committed by the first one. An empty registry means content on the node.
func (l *Locks) of(registry string) registryLocks { return registryLocks{l, registry} }

// replace locks a blob for a caller that deletes it and writes it again. The caller must not wait for a registry.
func (l *Locks) replace(ctx context.Context, d digest.Digest) (unlock func(), _ error) {
	key := d.String()
	if err := l.replaced.Lock(ctx, key); err != nil {
		return nil, err
	}
	return func() { l.replaced.Unlock(key) }, nil
}

// registryLocks are the locks of one registry's blobs and snapshots. They are the duplication suppressor of containerd's
// unpacker, and implement [download.Locks].
type registryLocks struct {
	locks    *Locks
	registry string
}

// Lock implements unpack.KeyedLocker. The lock of a blob is free only when no pull replaces the blob.
func (l registryLocks) Lock(ctx context.Context, key string) error {
	if err := bandwidth.Of(ctx).WaitForPull(func() error { return l.locks.writes.Lock(ctx, l.key(key)) }); err != nil {
		return err
	}
	d, ok := strings.CutPrefix(key, upstream.BlobLock)
	if !ok {
		return nil
	}
	unlock, err := l.locks.replace(ctx, digest.Digest(d))
	if err != nil {
		l.Unlock(key)
		return err
	}
	unlock()
	return nil
}

// Unlock implements unpack.KeyedLocker.
func (l registryLocks) Unlock(key string) { l.locks.writes.Unlock(l.key(key)) }

func (l registryLocks) key(key string) string { return l.registry + " " + key }

// blob locks a blob for writing until unlock is called.
func (l registryLocks) blob(ctx context.Context, d digest.Digest) (unlock func(), _ error) {
	key := blobKey(d)
	if err := l.Lock(ctx, key); err != nil {
		return nil, err
	}
	return func() { l.Unlock(key) }, nil
}

// ShareBlob implements [download.Locks].
func (l registryLocks) ShareBlob(d digest.Digest) (release func()) {
	key := blobKey(d)
	l.locks.writes.Share(l.key(key))
	return func() { l.Unlock(key) }
}

func blobKey(d digest.Digest) string { return upstream.BlobLock + d.String() }
