package pull

import (
	"context"
	"errors"
	"testing"
)

// TestLocksHonorContext waits for a lock with a canceled context.
func TestLocksHonorContext(t *testing.T) {
	var l Locks
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	used, err := l.ForUse(t.Context(), "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.ForRemoval(gone, "b", "c"); !errors.Is(err, context.Canceled) {
		t.Errorf("a removal: %v", err)
	}
	used()
	excluded, err := l.ForRemoval(t.Context(), "b", "c")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.ForUse(gone, "c"); !errors.Is(err, context.Canceled) {
		t.Errorf("a use: %v", err)
	}
	// The locks of blobs and snapshots, which containerd's unpacker uses too.
	excluded()
	if err := l.blobs.Lock(t.Context(), "blob"); err != nil {
		t.Fatal(err)
	}
	if err := l.blobs.Lock(gone, "blob"); !errors.Is(err, context.Canceled) {
		t.Errorf("a blob: %v", err)
	}
	l.blobs.Unlock("blob")
}
