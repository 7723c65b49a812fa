package pull

import (
	"context"
	"errors"
	"testing"
)

// TestUseHonoursContext has a removal wait for a use, and a use for a removal.
func TestUseHonoursContext(t *testing.T) {
	p := New(Config{})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	used, err := p.LockForUse(t.Context(), "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.LockForRemoval(gone, "b", "c"); !errors.Is(err, context.Canceled) {
		t.Errorf("a removal: %v", err)
	}
	used()
	excluded, err := p.LockForRemoval(t.Context(), "b", "c")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.LockForUse(gone, "c"); !errors.Is(err, context.Canceled) {
		t.Errorf("a use: %v", err)
	}
	// Of content and snapshots that are being made, which containerd's unpacker locks too.
	excluded()
	if err := p.blobs.Lock(t.Context(), "blob"); err != nil {
		t.Fatal(err)
	}
	if err := p.blobs.Lock(gone, "blob"); !errors.Is(err, context.Canceled) {
		t.Errorf("a blob: %v", err)
	}
	p.blobs.Unlock("blob")
}
