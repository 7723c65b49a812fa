package pull

import (
	"context"
	"errors"
	"testing"
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
	if err := l.blobs.Lock(t.Context(), "blob"); err != nil {
		t.Fatal(err)
	}
	if err := l.blobs.Lock(canceled, "blob"); !errors.Is(err, context.Canceled) {
		t.Errorf("lock of a blob: got %v, want context.Canceled", err)
	}
	l.blobs.Unlock("blob")
}
