package pin

import (
	"context"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Locked returns [imagepin.LockedReference] (ErrFailedPrecondition) for a reference whose digest the node's lock decides.
func Locked(ref string) error {
	return &imagepin.Error{
		Reason: imagepin.LockedReference, Ref: ref, Class: errdefs.ErrFailedPrecondition, Message: "the lock of this node decides its digest",
		Hint: "Apply a lock with another digest (imagepin apply), or remove the lock: imagepin lock rm",
	}
}

// SetLock replaces the pins of [policy.LockScope] in one step. They are in memory only: the caller stores the lock. kept are
// digests that are retained although no pin has them. The caller updates what pins retain, see [Config.Changed].
func (s *Store) SetLock(pins []Pin, kept []digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := maps.Clone(s.pins)
	for id, p := range before {
		if id.Scope == policy.LockScope {
			s.drop(p)
		}
	}
	for _, p := range pins {
		if old, ok := before[p.ID]; ok && old.Root.Digest == p.Root.Digest {
			p.UsedAt, p.Drift, p.Proofs = old.UsedAt, old.Drift, old.Proofs
		}
		s.add(p)
	}
	s.kept = make(map[digest.Digest]bool, len(kept))
	for _, root := range kept {
		s.kept[root] = true
	}
}

// OfLock returns the pin that the node's lock has for a reference.
func (s *table) OfLock(ref string) (Pin, bool) { return s.Get(ID{Scope: policy.LockScope, Ref: ref}) }

// HasRoot reports whether the node's lock, or what is retained for a lock, has a digest. Such content does not count for
// max_retained_bytes.
func (s *table) HasRoot(root digest.Digest) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.kept[root] || s.locked[root] > 0
}

// changeOfLock is changeLocked for a pin of the lock, which has no record. Only its digest is durable, with the lock.
func (s *Store) changeOfLock(ctx context.Context, id ID, decide func(old *Pin) (*Pin, Event, error)) (was *Pin, now Pin, _ error) {
	was, want, event, err := s.decideOfLock(id, decide)
	if err != nil || want == nil {
		return &Pin{}, Pin{}, err // as in changeLocked
	}
	if event != "" {
		s.config.Notify(ctx, event, *want, "")
	}
	return was, *want, nil
}

// decideOfLock decides and changes a pin of the lock in one step.
func (s *table) decideOfLock(id ID, decide func(old *Pin) (*Pin, Event, error)) (was, want *Pin, _ Event, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.pins[id]; ok {
		was = &p
	}
	want, event, err := decide(was)
	if err != nil || want == nil || want == was {
		return was, want, "", err
	}
	if was == nil || want.Root.Digest != was.Root.Digest || want.By != was.By || want.Retain != was.Retain {
		return nil, nil, "", Locked(id.Ref) // only SetLock decides the digests
	}
	s.drop(*was)
	s.add(*want)
	return was, want, event, nil
}

// LockPins returns the pins of the lock, ordered by reference.
func (s *table) LockPins() []Pin {
	return slices.DeleteFunc(s.List(), func(p Pin) bool { return p.Scope != policy.LockScope })
}
