package pin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// capNamespace returns the Kubernetes namespace whose cap a pin counts against. This is the namespace of its scope or, in the
// node scope, that of the pod that made it. It returns "" for pins that count against the cap of the node: pins of the
// node scope that an operator has set, or that were made without a pod.
func (p Pin) capNamespace() string { return cmp.Or(p.Scope.Namespace(), p.For) }

// madeFor returns the For field of a pin that is made or moved. Pins of an operator do not count against a tenant.
func madeFor(id ID, namespace string, by By) string {
	if by == ByOperator || id.Scope != policy.NodeScope {
		return ""
	}
	return namespace
}

// withRoom runs write, which makes one pin. If write fails because a cap is full, withRoom evicts one pin and retries.
func (s *Store) withRoom(ctx context.Context, write func() (Pin, error)) (Pin, error) {
	for {
		p, err := write()
		var full *fullError
		if !errors.As(err, &full) {
			return p, err
		}
		again, eerr := s.evict(ctx, full.namespace)
		if eerr != nil {
			return p, errors.Join(full.err, eerr)
		}
		if !again {
			return p, full.err
		}
	}
}

// evict removes one pin that counts against a namespace, is not in use, and was not set by an operator. It prefers pins
// that do not retain, and then the least recently used pin. It holds no mutex while it queries what is in use, and keeps
// pins that were used in the meantime. again reports whether there was room, which another caller may have taken since.
func (s *Store) evict(ctx context.Context, namespace string) (again bool, _ error) {
	candidates, room := s.evictable(namespace)
	if room || len(candidates) == 0 || s.config.InUse == nil {
		return room, nil
	}
	used, err := s.config.InUse(ctx)
	if err != nil {
		return false, err
	}
	for _, c := range candidates {
		if used[c.ID] {
			continue
		}
		same := func(now Pin) bool {
			return now.By != ByOperator && now.UsedAt.Equal(c.UsedAt) && now.MadeAt.Equal(c.MadeAt)
		}
		_, removed, err := s.removeIf(ctx, c.ID, Evicted, same)
		if err != nil && !errdefs.IsNotFound(err) {
			return false, err
		}
		if removed || errdefs.IsNotFound(err) {
			return true, nil
		}
	}
	return false, nil
}

// EvictRetaining removes pins that retain content, to make room for what another pin will retain, and reports whether it did: the
// pins of the least recently used digests, of which nothing uses a pin, an operator has set none, and all count against namespaces
// for which may returns true. It removes the fewest for which enough returns true, and none if it never does. As
// [Store.MakeForNamespace], it keeps pins that were used in the meantime.
func (s *Store) EvictRetaining(ctx context.Context, may func(namespace string) bool, enough func(freed []digest.Digest) bool) (evicted bool, _ error) {
	candidates := s.removable(func(p Pin) bool { return may(p.capNamespace()) && !s.lock.has(p.Root.Digest) })
	if len(candidates) == 0 || s.config.InUse == nil {
		return false, nil
	}
	used, err := s.config.InUse(ctx)
	if err != nil {
		return false, err
	}
	var (
		gone  []Pin
		freed []digest.Digest
	)
	for _, pins := range candidates {
		if slices.ContainsFunc(pins, func(p Pin) bool { return used[p.ID] }) {
			continue
		}
		gone, freed = append(gone, pins...), append(freed, pins[0].Root.Digest)
		if enough(freed) {
			return s.evictAll(ctx, gone)
		}
	}
	return false, nil
}

// evictAll removes pins that were not used since they were read.
func (s *Store) evictAll(ctx context.Context, pins []Pin) (evicted bool, _ error) {
	for _, c := range pins {
		same := func(now Pin) bool {
			return now.By != ByOperator && now.Retain && now.UsedAt.Equal(c.UsedAt) && now.MadeAt.Equal(c.MadeAt)
		}
		_, removed, err := s.removeIf(ctx, c.ID, Evicted, same)
		if err != nil && !errdefs.IsNotFound(err) {
			return evicted, err
		}
		evicted = evicted || removed || errdefs.IsNotFound(err)
	}
	return evicted, nil
}

// removable returns the pins that retain each digest, least recently used first, without digests of which a pin must stay.
func (s *table) removable(may func(Pin) bool) [][]Pin {
	s.mu.RLock()
	defer s.mu.RUnlock()
	byRoot := make(map[digest.Digest][]Pin)
	stays := make(map[digest.Digest]bool)
	for _, p := range s.pins {
		if !p.Retain {
			continue
		}
		root := p.Root.Digest
		byRoot[root] = append(byRoot[root], p)
		stays[root] = stays[root] || p.By == ByOperator || !may(p)
	}
	var all [][]Pin
	lastUse := func(pins []Pin) Pin {
		return slices.MaxFunc(pins, func(a, b Pin) int { return a.UsedAt.Compare(b.UsedAt) })
	}
	for root, pins := range byRoot {
		if !stays[root] {
			slices.SortFunc(pins, func(a, b Pin) int { return cmp.Compare(a.ID.String(), b.ID.String()) })
			all = append(all, pins)
		}
	}
	slices.SortFunc(all, func(a, b []Pin) int {
		x, y := lastUse(a), lastUse(b)
		return cmp.Or(x.UsedAt.Compare(y.UsedAt), x.MadeAt.Compare(y.MadeAt), cmp.Compare(x.ID.String(), y.ID.String()))
	})
	return all
}

// RetainedBy returns the Kubernetes namespaces whose pins retain each digest, without the pins of the lock. The name is empty for
// pins that count against the cap of the node.
func (s *table) RetainedBy() map[digest.Digest][]string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	by := make(map[digest.Digest][]string)
	for _, p := range s.pins {
		namespace := p.capNamespace()
		if p.Retain && !slices.Contains(by[p.Root.Digest], namespace) {
			by[p.Root.Digest] = append(by[p.Root.Digest], namespace)
		}
	}
	return by
}

// Namespaces returns the number of pins that count against the cap of each Kubernetes namespace. The name of the node's own
// cap is empty.
func (s *Store) Namespaces() map[string]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.perNamespace)
}

// hasRoom reports whether the cap of a namespace is not full. The caller holds the mutex.
func (s *Store) hasRoom(namespace string) bool {
	limit := s.config.MaxPerNamespace()
	return limit <= 0 || s.perNamespace[namespace] < limit
}

// evictable returns the pins that count against a namespace and were not set by an operator, in the order of eviction.
// room reports whether there is room without an eviction.
func (s *Store) evictable(namespace string) (_ []Pin, room bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var pins []Pin
	for _, p := range s.pins {
		if p.capNamespace() == namespace && p.By != ByOperator {
			pins = append(pins, p)
		}
	}
	slices.SortFunc(pins, func(a, b Pin) int {
		if a.Retain != b.Retain {
			if b.Retain {
				return -1
			}
			return 1
		}
		return cmp.Or(a.UsedAt.Compare(b.UsedAt), a.MadeAt.Compare(b.MadeAt), cmp.Compare(a.ID.String(), b.ID.String()))
	})
	return pins, s.hasRoom(namespace)
}

// reserve checks that there is room for a new pin. Until the returned function is called, no other caller can make a
// pin that counts against the same namespace. reserve returns [imagepin.PinLimitReached] (ErrResourceExhausted) if
// there is no room.
func (s *Store) reserve(ctx context.Context, p Pin) (release func(), _ error) {
	namespace := p.capNamespace()
	if err := s.makers.Lock(ctx, namespace); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.hasRoom(namespace) {
		s.makers.Unlock(namespace)
		return nil, &fullError{namespace: namespace, err: limitReached(p.ID, namespace, s.perNamespace[namespace])}
	}
	return func() { s.makers.Unlock(namespace) }, nil
}

// fullError reports that the cap of a namespace is full.
type fullError struct {
	namespace string
	err       error
}

func (e *fullError) Error() string { return e.err.Error() }

// Unwrap returns the error for the caller.
func (e *fullError) Unwrap() error { return e.err }

func limitReached(id ID, namespace string, n int) error {
	of := "the node"
	if namespace != "" {
		of = "namespace " + namespace
	}
	return &imagepin.Error{
		Reason: imagepin.PinLimitReached, Ref: id.Ref, Class: errdefs.ErrResourceExhausted,
		Message: fmt.Sprintf("%s has %d pins in use or set by an operator, and max_pins_per_namespace allows no more", of, n),
		Hint:    "Remove pins that are not needed (imagepin pin ls, imagepin pin rm), or raise max_pins_per_namespace.",
	}
}
