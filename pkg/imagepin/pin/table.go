package pin

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
)

// table has the pins of the node's records in memory.
type table struct {
	mu           sync.RWMutex
	pins         map[ID]Pin
	byRef        map[string]map[ID]struct{}
	retained     map[digest.Digest]int // number of pins that retain each digest
	proofs       map[string]int        // number of pins with each proof
	perNamespace map[string]int        // number of pins that count against each Kubernetes namespace
	ignored      map[string]unreadable // unreadable records, by name
	written      map[string]bool       // records that were written or deleted during a Load, by name; nil without a Load
}

func newTable() *table {
	return &table{
		pins: make(map[ID]Pin), byRef: make(map[string]map[ID]struct{}), retained: make(map[digest.Digest]int),
		proofs: make(map[string]int), perNamespace: make(map[string]int), ignored: make(map[string]unreadable),
	}
}

// Get returns a pin.
func (s *table) Get(id ID) (Pin, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p, ok := s.pins[id]
	return p, ok
}

// Pinned reports whether a reference has a pin in any scope.
func (s *table) Pinned(ref string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.byRef[ref]) > 0
}

// List returns all pins, ordered by reference and scope.
func (s *table) List() []Pin {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.SortedFunc(maps.Values(s.pins), byRefAndScope)
}

func byRefAndScope(a, b Pin) int { return cmp.Or(strings.Compare(a.Ref, b.Ref), byScope(a, b)) }

func byScope(a, b Pin) int { return cmp.Compare(a.Scope, b.Scope) }

// Scopes returns the pins of a reference, ordered by scope.
func (s *table) Scopes(ref string) []Pin {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var pins []Pin
	for id := range s.byRef[ref] {
		pins = append(pins, s.pins[id])
	}
	slices.SortFunc(pins, byScope)
	return pins
}

// Retained returns the digests that pins retain.
func (s *table) Retained() []digest.Digest {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.retained))
}

// Retains reports whether a pin retains a digest.
func (s *table) Retains(root digest.Digest) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.retained[root] > 0
}

// set replaces a pin. With nil, it removes the pin.
func (s *table) set(id ID, p *Pin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, had := s.pins[id]; had {
		s.drop(old)
	}
	if p != nil {
		s.add(*p)
	}
	s.clearIgnored(id.String())
}

// add adds a new pin. The caller holds the mutex.
func (s *table) add(p Pin) {
	s.pins[p.ID] = p
	if s.byRef[p.Ref] == nil {
		s.byRef[p.Ref] = make(map[ID]struct{})
	}
	s.byRef[p.Ref][p.ID] = struct{}{}
	count(s.perNamespace, p.capNamespace(), 1)
	if p.Retain {
		count(s.retained, p.Root.Digest, 1)
	}
	for _, proof := range p.Proofs {
		count(s.proofs, proof.MAC, 1)
	}
}

// drop removes a pin. The caller holds the mutex.
func (s *table) drop(p Pin) {
	delete(s.pins, p.ID)
	if delete(s.byRef[p.Ref], p.ID); len(s.byRef[p.Ref]) == 0 {
		delete(s.byRef, p.Ref)
	}
	count(s.perNamespace, p.capNamespace(), -1)
	if p.Retain {
		count(s.retained, p.Root.Digest, -1)
	}
	for _, proof := range p.Proofs {
		count(s.proofs, proof.MAC, -1)
	}
}

func count[K comparable](of map[K]int, key K, n int) {
	if of[key] += n; of[key] == 0 {
		delete(of, key)
	}
}
