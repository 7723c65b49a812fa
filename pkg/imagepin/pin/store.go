package pin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/keyed"
)

// Namespaces is what a Store needs of containerd's namespaces.
type Namespaces interface {
	Create(ctx context.Context, namespace string, labels map[string]string) error
}

// Event is what happened to a pin.
type Event string

// What can happen to a pin.
const (
	Made    Event = "made"
	Moved   Event = "moved"
	Removed Event = "removed"
	Expired Event = "expired"
	Drifted Event = "drift"
)

// Config is what a Store works on.
type Config struct {
	Images     images.Store
	Namespaces Namespaces
	// MaxPerNamespace bounds the pins of one Kubernetes namespace, and of the
	// node; zero does not.
	MaxPerNamespace int
	// Notify is told what happens, after it is durable. previous is the digest
	// that a moved pin had.
	Notify func(ctx context.Context, e Event, p Pin, previous digest.Digest)
}

// Store is the pins of a node. Every pin is also in memory: this process is the
// only one that writes them. It is safe for concurrent use.
type Store struct {
	Config
	write keyed.Mutex // by pin: reading, deciding and writing is one step

	mu       sync.RWMutex
	pins     map[ID]Pin
	byRef    map[string]map[ID]struct{}
	retained map[digest.Digest]int // how many pins retain each
	proofs   map[string]int        // how many pins have each
}

// New makes a store; [Store.Load] fills it.
func New(c Config) *Store {
	if c.Notify == nil {
		c.Notify = func(context.Context, Event, Pin, digest.Digest) {}
	}
	return &Store{
		Config: c, pins: make(map[ID]Pin), byRef: make(map[string]map[ID]struct{}),
		retained: make(map[digest.Digest]int), proofs: make(map[string]int),
	}
}

func namespaced(ctx context.Context) context.Context { return namespaces.WithNamespace(ctx, Namespace) }

// Load reads all pins. One that cannot be read is left alone, and logged.
func (s *Store) Load(ctx context.Context) error {
	err := s.Namespaces.Create(ctx, Namespace, nil)
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("namespace of the pins: %w", err)
	}
	all, err := s.Images.List(namespaced(ctx))
	if err != nil {
		return fmt.Errorf("list pins: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.pins)
	clear(s.byRef)
	clear(s.retained)
	clear(s.proofs)
	for _, img := range all {
		p, err := read(img)
		if err != nil {
			log.G(ctx).WithError(err).Warn("a pin is left alone that cannot be read")
			continue
		}
		s.add(p)
	}
	return nil
}

// Get gives a pin.
func (s *Store) Get(id ID) (Pin, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p, ok := s.pins[id]
	return p, ok
}

// Pinned tells whether a reference has a pin in any scope.
func (s *Store) Pinned(ref string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.byRef[ref]) > 0
}

// List gives all pins, by reference and scope.
func (s *Store) List() []Pin {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.SortedFunc(maps.Values(s.pins), func(a, b Pin) int {
		return cmp.Or(strings.Compare(a.Ref, b.Ref), cmp.Compare(a.Scope, b.Scope))
	})
}

// Scopes gives the pins of a reference, by scope.
func (s *Store) Scopes(ref string) []Pin {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var pins []Pin
	for id := range s.byRef[ref] {
		pins = append(pins, s.pins[id])
	}
	slices.SortFunc(pins, func(a, b Pin) int { return cmp.Compare(a.Scope, b.Scope) })
	return pins
}

// Retains tells whether a pin retains what root names.
func (s *Store) Retains(root digest.Digest) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.retained[root] > 0
}

// Make pins a reference unless it is pinned already: the first use decides, and
// whoever comes second gets what the first decided. It fails with
// [imagepin.PinLimitReached] (ErrResourceExhausted).
func (s *Store) Make(ctx context.Context, id ID, root ocispec.Descriptor, by By, retain bool) (Pin, error) {
	return s.change(ctx, id, func(old *Pin) (*Pin, Event, error) {
		if old != nil {
			return old, "", nil
		}
		if err := s.room(id); err != nil {
			return nil, "", err
		}
		now := time.Now()
		return &Pin{ID: id, Root: plain(root), MadeAt: now, UsedAt: now, By: by, Retain: retain}, Made, nil
	})
}

// Move makes a reference mean another digest. Where it had no pin, it gets one.
func (s *Store) Move(ctx context.Context, id ID, root ocispec.Descriptor, by By, retain bool) (Pin, error) {
	return s.change(ctx, id, func(old *Pin) (*Pin, Event, error) {
		now := time.Now()
		if old == nil {
			if err := s.room(id); err != nil {
				return nil, "", err
			}
			return &Pin{ID: id, Root: plain(root), MadeAt: now, UsedAt: now, By: by, Retain: retain}, Made, nil
		}
		p := *old
		if p.Retain, p.Drift = retain, nil; !retain {
			p.Proofs = nil // they go with what they are of
		}
		if old.Root.Digest == root.Digest {
			if by == ByOperator {
				p.By = by
			}
			return &p, "", nil
		}
		p.History = append(slices.Clone(old.History), Change{Digest: old.Root.Digest, From: old.MadeAt, By: old.By})
		p.History = p.History[max(0, len(p.History)-maxHistory):]
		p.Root, p.MadeAt, p.UsedAt, p.By, p.Proofs = plain(root), now, now, by, nil
		return &p, Moved, nil
	})
}

// Touch notes that a pin is used; at most one write a day.
func (s *Store) Touch(ctx context.Context, id ID) error {
	today := time.Now().UTC().Format(time.DateOnly)
	if p, ok := s.Get(id); !ok || p.UsedAt.UTC().Format(time.DateOnly) >= today {
		return nil
	}
	_, err := s.change(ctx, id, func(old *Pin) (*Pin, Event, error) {
		if old == nil {
			return nil, "", nil
		}
		p := *old
		p.UsedAt = time.Now()
		return &p, "", nil
	})
	return err
}

// Saw notes what the registry's tag means now: drift where it is not the pin's
// digest. It writes only where that is news.
func (s *Store) Saw(ctx context.Context, id ID, now digest.Digest) error {
	p, ok := s.Get(id)
	if !ok {
		return nil
	}
	known := p.Root.Digest
	if p.Drift != nil {
		known = p.Drift.Digest
	}
	if now == known {
		return nil
	}
	_, err := s.change(ctx, id, func(old *Pin) (*Pin, Event, error) {
		if old == nil {
			return nil, "", nil
		}
		p := *old
		if p.Drift = nil; now == p.Root.Digest {
			return &p, "", nil
		}
		p.Drift = &Drift{Digest: now, Since: time.Now().UTC().Truncate(time.Second)}
		return &p, Drifted, nil
	})
	return err
}

// Remove lets a reference mean again what its registry says. It fails with
// ErrNotFound.
func (s *Store) Remove(ctx context.Context, id ID) (Pin, error) {
	return s.remove(ctx, id, Removed)
}

// Expire removes the pins that were not used since before, unless inUse says
// that something on the node is made of them.
func (s *Store) Expire(ctx context.Context, before time.Time, inUse func(ID) bool) error {
	for _, p := range s.List() {
		if !p.UsedAt.Before(before) {
			continue
		}
		if inUse(p.ID) {
			if err := s.Touch(ctx, p.ID); err != nil {
				return err
			}
			continue
		}
		if _, err := s.remove(ctx, p.ID, Expired); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (s *Store) remove(ctx context.Context, id ID, why Event) (Pin, error) {
	if err := s.write.Lock(ctx, id.String()); err != nil {
		return Pin{}, err
	}
	defer s.write.Unlock(id.String())
	p, ok := s.Get(id)
	if !ok {
		return Pin{}, &imagepin.Error{
			Name: imagepin.UnknownPin, Ref: id.Ref, Class: errdefs.ErrNotFound,
			What: fmt.Sprintf("it has no pin in scope %s", id.Scope), Do: "imagepin pin ls lists the pins of this node.",
		}
	}
	failpoint.Reach("pin.remove")
	if err := s.Images.Delete(namespaced(ctx), id.String()); err != nil && !errdefs.IsNotFound(err) {
		return Pin{}, fmt.Errorf("remove pin %s: %w", id, err)
	}
	failpoint.Reach("pin.removed")
	s.set(id, nil)
	s.Notify(ctx, why, p, "")
	return p, nil
}

// change reads, decides and writes one pin in one step. decide gets the pin as
// it is, or nil, and returns it as it should be: the same pointer to leave it.
func (s *Store) change(ctx context.Context, id ID, decide func(old *Pin) (*Pin, Event, error)) (Pin, error) {
	if err := s.write.Lock(ctx, id.String()); err != nil {
		return Pin{}, err
	}
	defer s.write.Unlock(id.String())
	var old *Pin
	if p, ok := s.Get(id); ok {
		old = &p
	}
	want, event, err := decide(old)
	if err != nil || want == nil {
		return Pin{}, err
	}
	if want == old {
		return *old, nil
	}
	img, err := want.record()
	if err != nil {
		return Pin{}, err
	}
	failpoint.Reach("pin.write")
	if old == nil {
		_, err = s.Images.Create(namespaced(ctx), img)
		if errdefs.IsAlreadyExists(err) { // one that could not be read
			_, err = s.Images.Update(namespaced(ctx), img)
		}
	} else {
		_, err = s.Images.Update(namespaced(ctx), img)
	}
	if err != nil {
		return Pin{}, fmt.Errorf("write pin %s: %w", id, err)
	}
	failpoint.Reach("pin.written")
	s.set(id, want)
	if event != "" {
		var previous digest.Digest
		if event == Moved {
			previous = old.Root.Digest
		}
		s.Notify(ctx, event, *want, previous)
	}
	return *want, nil
}

func (s *Store) set(id ID, p *Pin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, had := s.pins[id]; had {
		s.drop(old)
	}
	if p != nil {
		s.add(*p)
	}
}

// add notes a pin that there is none of. The caller holds the lock.
func (s *Store) add(p Pin) {
	s.pins[p.ID] = p
	if s.byRef[p.Ref] == nil {
		s.byRef[p.Ref] = make(map[ID]struct{})
	}
	s.byRef[p.Ref][p.ID] = struct{}{}
	if p.Retain {
		count(s.retained, p.Root.Digest, 1)
	}
	for _, proof := range p.Proofs {
		count(s.proofs, proof.MAC, 1)
	}
}

// drop is the opposite of add.
func (s *Store) drop(p Pin) {
	delete(s.pins, p.ID)
	if delete(s.byRef[p.Ref], p.ID); len(s.byRef[p.Ref]) == 0 {
		delete(s.byRef, p.Ref)
	}
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

// Limit replaces Config.MaxPerNamespace. Pins that are too many stay.
func (s *Store) Limit(maxPerNamespace int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.MaxPerNamespace = maxPerNamespace
}

// room tells whether one more pin may be made for the Kubernetes namespace of a
// scope: a tenant must not fill the node's metadata.
func (s *Store) room(id ID) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.MaxPerNamespace <= 0 {
		return nil
	}
	n := 0
	for other := range s.pins {
		if other.Scope.Namespace() == id.Scope.Namespace() {
			n++
		}
	}
	if n < s.MaxPerNamespace {
		return nil
	}
	of := "the node"
	if ns := id.Scope.Namespace(); ns != "" {
		of = "namespace " + ns
	}
	return &imagepin.Error{
		Name: imagepin.PinLimitReached, Ref: id.Ref, Class: errdefs.ErrResourceExhausted,
		What: fmt.Sprintf("%s has %d pins, which is max_pins_per_namespace", of, n),
		Do:   "Remove pins that are not needed (imagepin pin ls, imagepin pin rm), shorten pin_ttl, or raise max_pins_per_namespace.",
	}
}

// plain is a descriptor as an image record keeps it.
func plain(d ocispec.Descriptor) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
}
