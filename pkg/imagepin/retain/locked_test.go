package retain_test

import (
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// lock makes the node's lock name the root of an entry, and retains those of others as an apply and the previous lock do.
func (e *env) lock(of *imagepin.Entry, kept ...imagepin.Entry) {
	e.t.Helper()
	var pins []pin.Pin
	roots := e.pins.Retained()
	if of != nil {
		pins = append(pins, pin.Pin{ID: pin.ID{Scope: policy.LockScope, Ref: repo + ":locked"}, Root: of.Root, By: pin.ByLock, Retain: true})
		roots = append(roots, of.Root.Digest)
	}
	var digests []digest.Digest
	for _, k := range kept {
		digests = append(digests, k.Root.Digest)
	}
	e.pins.SetLock(pins, digests)
	if err := e.Sync(e.ctx, append(roots, digests...)...); err != nil {
		e.t.Fatal(err)
	}
}

// TestLockedContent checks that the content of the current and the previous lock is retained, also without a record and after a
// restart, and is released when neither needs it.
func TestLockedContent(t *testing.T) {
	e := newEnv(t)
	now, before := e.image("now", first), e.image("before", first)
	e.lock(&now, before)
	e.remove(now, before)
	e.wantPresent("current lock", now, true)
	e.wantPresent("previous lock", before, true)
	e.lock(&before, now) // a rollback
	e.node.Collect(t)
	e.wantPresent("after a rollback", now, true)
	e.lock(&before)
	e.node.Collect(t)
	e.wantPresent("without the previous lock", now, false)
	e.wantPresent("current lock", before, true)
	e.lock(nil)
	e.node.Collect(t)
	e.wantPresent("without a lock", before, false)
}

// TestLockedContentOfPin checks that content that a pin retains stays when the lock releases it.
func TestLockedContentOfPin(t *testing.T) {
	e := newEnv(t)
	shared, other := e.image("shared", first), e.image("other", first)
	e.pin("a", shared)
	e.lock(&shared, other)
	e.lock(nil)
	e.remove(shared, other)
	e.wantPresent("retained by a pin", shared, true)
	e.wantPresent("retained by the lock", other, false)
}

// TestLockedDoesNotCount checks that content for a lock does not count for max_retained_bytes, and does when only a pin retains
// it.
func TestLockedDoesNotCount(t *testing.T) {
	e := newEnv(t)
	e.maxBytes = 1000
	a, b, c, d := e.image("a", first), e.image("b", first), e.image("c", first), e.image("d", first)
	e.pin("a", a)
	e.lock(&b, c)
	for name, entry := range map[string]imagepin.Entry{"pin": a, "lock": b, "previous lock": c} {
		e.wantHeld(name, entry, true)
	}
	wantEqual(t, "bytes", e.Bytes(), 1000)
	release, err := e.Reserve("", nil, nil, b, c)
	if err != nil {
		t.Fatalf("reserving for images of the lock: %v", err)
	}
	release()
	_, err = e.Reserve("", nil, nil, d)
	wantFull(t, "another image", err)

	// A pin of an image of the lock needs no room, until the lock is removed.
	e.pin("b", b)
	wantEqual(t, "bytes with a pin of the lock's image", e.Bytes(), 1000)
	e.unpin("a")
	wantEqual(t, "bytes after the other pin", e.Bytes(), 0)
	e.lock(nil)
	wantEqual(t, "bytes without a lock", e.Bytes(), 1000)
	e.wantHeld("of the pin that is left", b, true)
	_, err = e.Reserve("", nil, nil, d)
	wantFull(t, "after the lock was removed", err)
	e.lock(&b)
	release, err = e.Reserve("", nil, nil, d)
	if err != nil {
		t.Errorf("after it was applied again: %v", err)
	} else {
		release()
	}
}
