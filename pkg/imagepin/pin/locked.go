package pin

import (
	"maps"
	"slices"
	"sync"

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

// lockPins has the pins of the node's lock. They are in memory only: the lock is what is stored.
type lockPins struct {
	mu    sync.RWMutex
	pins  map[string]Pin         // by reference
	roots map[digest.Digest]bool // digests of pins
	kept  map[digest.Digest]bool // digests that are retained for a lock without a pin
	// proofs has the number of pins with each proof.
	proofs map[string]int
}

// replace replaces all pins and kept digests in one step. The use, the drift and the proofs of a pin with the same digest stay.
func (l *lockPins) replace(pins []Pin, kept []digest.Digest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.pins
	l.pins, l.roots, l.kept = make(map[string]Pin, len(pins)), make(map[digest.Digest]bool, len(pins)), make(map[digest.Digest]bool, len(kept))
	l.proofs = make(map[string]int)
	for _, p := range pins {
		if old, ok := before[p.Ref]; ok && old.Root.Digest == p.Root.Digest {
			p.UsedAt, p.Drift, p.Proofs = old.UsedAt, old.Drift, old.Proofs
		}
		l.pins[p.Ref], l.roots[p.Root.Digest] = p, true
		l.countProofs(p, 1)
	}
	for _, root := range kept {
		l.kept[root] = true
	}
}

func (l *lockPins) get(ref string) (Pin, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	p, ok := l.pins[ref]
	return p, ok
}

func (l *lockPins) list() []Pin {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Collect(maps.Values(l.pins))
}

// ofRoot returns the pins with a digest.
func (l *lockPins) ofRoot(root digest.Digest) (pins []Pin) {
	if !l.has(root) {
		return nil
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, p := range l.pins {
		if p.Root.Digest == root {
			pins = append(pins, p)
		}
	}
	return pins
}

// countProofs adds n to the number of pins with the proofs of a pin. The caller holds the mutex.
func (l *lockPins) countProofs(p Pin, n int) {
	for _, proof := range p.Proofs {
		count(l.proofs, proof.MAC, n)
	}
}

func (l *lockPins) hasProof(macs []string) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.ContainsFunc(macs, func(mac string) bool { return l.proofs[mac] > 0 })
}

// has reports whether a pin has a digest, or the digest is kept.
func (l *lockPins) has(root digest.Digest) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.kept[root] || l.roots[root]
}

// retained returns the digests of all pins, and those that are kept.
func (l *lockPins) retained() []digest.Digest {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Concat(slices.Collect(maps.Keys(l.roots)), slices.Collect(maps.Keys(l.kept)))
}

// change decides and changes what a pin has besides its digest, in one step. As in [Store.change], decide returns the same pointer if
// nothing changes.
func (l *lockPins) change(ref string, decide func(old *Pin) (*Pin, Event, error)) (was, want *Pin, _ Event, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p, ok := l.pins[ref]; ok {
		was = &p
	}
	want, event, err := decide(was)
	if err != nil || want == nil || want == was {
		return was, want, "", err
	}
	if was == nil || want.Root.Digest != was.Root.Digest || want.By != was.By || want.Retain != was.Retain {
		return nil, nil, "", Locked(ref) // only replace decides the digests
	}
	l.countProofs(*was, -1)
	l.countProofs(*want, 1)
	l.pins[ref] = *want
	return was, want, event, nil
}

// SetLock replaces the pins of [policy.LockScope] in one step: the caller stores the lock. kept are digests that are retained although
// no pin has them. The caller updates what pins retain, see [Config.Changed].
func (s *Store) SetLock(pins []Pin, kept []digest.Digest) { s.lock.replace(pins, kept) }

// OfLock returns the pin that the node's lock has for a reference.
func (s *Store) OfLock(ref string) (Pin, bool) { return s.lock.get(ref) }

// HasRoot reports whether the node's lock, or what is retained for a lock, has a digest. Such content does not count for
// max_retained_bytes.
func (s *Store) HasRoot(root digest.Digest) bool { return s.lock.has(root) }

// Get returns a pin.
func (s *Store) Get(id ID) (Pin, bool) {
	if id.Scope == policy.LockScope {
		return s.lock.get(id.Ref)
	}
	return s.table.Get(id)
}

// Pinned reports whether a reference has a pin in any scope.
func (s *Store) Pinned(ref string) bool {
	_, locked := s.lock.get(ref)
	return locked || s.table.Pinned(ref)
}

// List returns all pins, ordered by reference and scope.
func (s *Store) List() []Pin {
	all := append(s.table.List(), s.lock.list()...)
	slices.SortFunc(all, byRefAndScope)
	return all
}

// Scopes returns the pins of a reference, ordered by scope.
func (s *Store) Scopes(ref string) []Pin {
	all := s.table.Scopes(ref)
	if p, ok := s.lock.get(ref); ok {
		all = append(all, p)
		slices.SortFunc(all, byScope)
	}
	return all
}

// Retained returns the digests that pins retain.
func (s *Store) Retained() []digest.Digest {
	all := append(s.table.Retained(), s.lock.retained()...)
	slices.Sort(all)
	return slices.Compact(all)
}

// Retains reports whether a pin retains a digest.
func (s *Store) Retains(root digest.Digest) bool { return s.table.Retains(root) || s.lock.has(root) }
