package pull

import (
	"context"
	"errors"
	"testing"

	"github.com/opencontainers/go-digest"
)

// TestLocksHonorContext checks that waiting for a lock with a canceled context fails.
func TestLocksHonorContext(t *testing.T) {
	var l Locks
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	used, err := l.ForUse(t.Context(), "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.ForRemoval(canceled, "b", "c"); !errors.Is(err, context.Canceled) {
		t.Errorf("ForRemoval: got %v, want context.Canceled", err)
	}
	used()
	excluded, err := l.ForRemoval(t.Context(), "b", "c")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.ForUse(canceled, "c"); !errors.Is(err, context.Canceled) {
		t.Errorf("ForUse: got %v, want context.Canceled", err)
	}
	excluded()
	// containerd's unpacker also uses the locks of blobs and snapshots.
	blob := digest.FromString("blob")
	own := l.of("registry.example")
	unlock, err := own.blob(t.Context(), blob)
	if err != nil {
		t.Fatal(err)
	}
	if err := own.Lock(canceled, blobKey(blob)); !errors.Is(err, context.Canceled) {
		t.Errorf("lock of a blob: got %v, want context.Canceled", err)
	}
	unlock()
	// The lock of a blob that is being replaced is not free, and not held either.
	replaced, err := l.replace(t.Context(), blob)
	if err != nil {
		t.Fatal(err)
	}
	waiting, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- own.Lock(waiting, blobKey(blob)) }()
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("lock of a blob that is being replaced: got %v, want context.Canceled", err)
	}
	replaced()
	if unlock, err = own.blob(t.Context(), blob); err != nil {
		t.Fatal(err)
	}
	unlock()
}

// TestRegistriesDoNotShareLocks checks that a pull can lock what a pull from another registry has locked.
func TestRegistriesDoNotShareLocks(t *testing.T) {
	var l Locks
	ctx, cancel := context.WithTimeout(t.Context(), enough)
	defer cancel()
	for _, registry := range []string{"", "a.example", "b.example:5000"} {
		for _, key := range []string{blobKey(digest.FromString("blob")), "sn://overlayfs/chain"} {
			if err := l.of(registry).Lock(ctx, key); err != nil {
				t.Fatal(err)
			}
			defer l.of(registry).Unlock(key)
		}
	}
}
