package pin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/keyed"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Namespaces creates containerd namespaces.
type Namespaces interface {
	Create(ctx context.Context, namespace string, labels map[string]string) error
}

// Event is a change of a pin.
type Event string

// These are the events of pins.
const (
	Made    Event = "made"
	Moved   Event = "moved"
	Removed Event = "removed"
	Expired Event = "expired"
	Evicted Event = "evicted"
	Drifted Event = "drifted"
	// Gone means that the registry no longer has the pinned digest. Package lookup finds it; the pin does not change.
	Gone Event = "gone"
)

// Events lists all events.
var Events = []Event{Made, Moved, Removed, Expired, Evicted, Drifted, Gone}

// Config configures a Store.
type Config struct {
	Images     images.Store
	Namespaces Namespaces
	// MaxPerNamespace returns how many pins a Kubernetes namespace or the node may have. Zero means no limit, and so
	// does a nil function.
	MaxPerNamespace func() int
	// InUse returns the pins that containers on the node use. It is called without a mutex when a namespace has no room.
	// If it is nil, no pin is evicted.
	InUse func(ctx context.Context) (map[ID]bool, error)
	// Changed is called without a mutex after a pin has changed, to update what pins retain. roots are the old and the
	// new digest of the pin. The call that changed the pin returns its error. It may be nil.
	Changed func(ctx context.Context, roots ...digest.Digest) error
	// Notify is called for each event after it is durable. previous is the old digest of a pin that was moved. It may
	// be nil.
	Notify func(ctx context.Context, e Event, p Pin, previous digest.Digest)
}

// Store has the pins of a node. It keeps every pin in memory, because this process is the only one that writes them. It
// is safe for concurrent use.
type Store struct {
	*table
	lock   lockPins
	config Config
	write  keyed.Mutex // by pin, makes reading, deciding and writing one step
	makers keyed.Mutex // by cap namespace, taken after write, makes counting and writing a new pin one step
	loads  keyed.Mutex // by [Namespace], allows one Load at a time
}

// New returns an empty store. [Store.Load] fills it.
func New(c Config) *Store {
	if c.Notify == nil {
		c.Notify = func(context.Context, Event, Pin, digest.Digest) {}
	}
	if c.MaxPerNamespace == nil {
		c.MaxPerNamespace = func() int { return 0 }
	}
	if c.Changed == nil {
		c.Changed = func(context.Context, ...digest.Digest) error { return nil }
	}
	return &Store{table: newTable(), config: c}
}

func namespaced(ctx context.Context) context.Context { return namespaces.WithNamespace(ctx, Namespace) }

// MakeForNamespace pins a reference if it has no pin, and returns its pin. With concurrent calls the first one decides, and the
// others return its pin. It marks an existing pin as used now. namespace is the Kubernetes namespace of the pod, or "" without
// one: a new pin of the node scope counts against its cap. If the cap is full, MakeForNamespace evicts the least recently used
// pin that is not in use and was not set by an operator.
//
// It returns [imagepin.PinLimitReached] (ErrResourceExhausted) if no pin can be evicted, and
// [imagepin.PinOfNewerRelease] (ErrNotImplemented) if a newer release wrote the pin.
func (s *Store) MakeForNamespace(ctx context.Context, namespace string, id ID, root ocispec.Descriptor, by By, retain bool) (Pin, error) {
	return s.withRoom(ctx, func() (Pin, error) {
		return s.change(ctx, id, func(old *Pin) (*Pin, Event, error) {
			now := time.Now()
			if old != nil {
				p := *old
				p.UsedAt = now
				return &p, "", nil
			}
			return &Pin{
				ID: id, Root: plain(root), MadeAt: now, UsedAt: now, By: by, Retain: retain, For: madeFor(id, namespace, by),
			}, Made, nil
		})
	})
}

// Move pins a reference to another digest, and creates the pin if there is none. It returns the same errors as
// [Store.MakeForNamespace].
func (s *Store) Move(ctx context.Context, id ID, root ocispec.Descriptor, by By, retain bool) (Pin, error) {
	p, err := s.withRoom(ctx, func() (Pin, error) {
		return s.change(ctx, id, func(old *Pin) (*Pin, Event, error) { return moved(old, id, root, by, retain) })
	})
	if err != nil || !retain {
		return p, err
	}
	return p, s.config.Changed(ctx, p.Root.Digest) // retry to retain content without room at the time of the pin
}

// ErrChanged means that a pin was removed or moved since it was read. It matches ErrAborted.
var ErrChanged = fmt.Errorf("the pin was removed or moved meanwhile: %w", errdefs.ErrAborted)

// MoveUnchanged is [Store.Move] for a pin that has the digest that was read. It fails with [ErrChanged] if it has not.
func (s *Store) MoveUnchanged(ctx context.Context, read Pin, root ocispec.Descriptor, by By, retain bool) (Pin, error) {
	p, err := s.change(ctx, read.ID, func(old *Pin) (*Pin, Event, error) {
		if old == nil || old.Root.Digest != read.Root.Digest {
			return nil, "", ErrChanged
		}
		return moved(old, old.ID, root, by, retain)
	})
	if err != nil || !retain {
		return p, err
	}
	return p, s.config.Changed(ctx, p.Root.Digest) // as in Move
}

// ErrNoRoom means that a refresh has reserved no room for the content that a pin retains.
var ErrNoRoom = errors.New("the pin retains content, and no room is reserved for it")

// Refresh moves a pin to another digest, as [Store.Move] does, and keeps whether it retains content. A pin of an
// operator stays one. A pin that was removed or moved since it was read does not change: Refresh returns the pin as it
// is, or as it was read. reserved reports whether room is reserved for the content of root. Without it, Refresh does
// not move a pin that retains content, and returns ErrNoRoom.
func (s *Store) Refresh(ctx context.Context, read Pin, root ocispec.Descriptor, reserved bool) (Pin, error) {
	p, err := s.change(ctx, read.ID, func(old *Pin) (*Pin, Event, error) {
		if old == nil || old.Root.Digest != read.Root.Digest {
			return old, "", nil
		}
		if old.Retain && !reserved {
			return nil, "", ErrNoRoom
		}
		by := ByRefresh
		if old.By == ByOperator {
			by = old.By // it still applies whatever the rules say
		}
		return moved(old, old.ID, root, by, old.Retain)
	})
	switch {
	case err != nil:
		return p, err
	case p.ID == (ID{}):
		return read, nil
	case p.Retain && p.Root.Digest == root.Digest:
		return p, s.config.Changed(ctx, p.Root.Digest) // as in Move
	}
	return p, nil
}

// moved returns the pin after [Store.Move].
func moved(old *Pin, id ID, root ocispec.Descriptor, by By, retain bool) (*Pin, Event, error) {
	now := time.Now()
	if old == nil {
		return &Pin{ID: id, Root: plain(root), MadeAt: now, UsedAt: now, By: by, Retain: retain}, Made, nil
	}
	p := *old
	p.For = madeFor(id, old.For, by)
	if by == ByOperator {
		p.Provisional, p.Claimer = nil, "" // the choice for this node is not for the others
	}
	if p.Retain, p.Drift = retain, nil; !retain {
		p.Proofs = nil // proofs are only for retained content
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
}

// Touch marks a pin as used now. It writes at most once a day.
func (s *Store) Touch(ctx context.Context, id ID) error {
	if _, ok := s.Get(id); !ok {
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

// RecordDrift records the current digest of the registry's tag. The pin has drifted if it differs from the pinned digest. RecordDrift
// only writes changes.
func (s *Store) RecordDrift(ctx context.Context, id ID, now digest.Digest) error {
	p, ok := s.Get(id)
	if !ok {
		return nil
	}
	return s.RecordDriftSince(ctx, p, now)
}

// RecordDriftSince is [Store.RecordDrift] for a pin as it was read before the registry was asked. It does nothing if the pin was
// removed or moved since.
func (s *Store) RecordDriftSince(ctx context.Context, read Pin, now digest.Digest) error {
	if now == read.tagDigest() {
		return nil
	}
	_, err := s.change(ctx, read.ID, func(old *Pin) (*Pin, Event, error) {
		if old == nil || old.Root.Digest != read.Root.Digest || now == old.tagDigest() {
			return old, "", nil
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

// tagDigest returns the digest of the registry's tag, as far as it is known.
func (p Pin) tagDigest() digest.Digest {
	if p.Drift != nil {
		return p.Drift.Digest
	}
	return p.Root.Digest
}

// Remove removes a pin, so that the tag follows the registry again. It also removes a record that cannot be read. It
// returns ErrNotFound if there is no pin.
func (s *Store) Remove(ctx context.Context, id ID) (Pin, error) {
	p, _, err := s.removeIf(ctx, id, Removed, func(Pin) bool { return true })
	if errdefs.IsNotFound(err) {
		if p, err = s.removeUnreadable(ctx, id, err); err == nil {
			err = s.config.Changed(ctx, p.Root.Digest)
		}
	}
	return p, err
}

// Expire removes the pins that were not used since before, unless inUse reports that something on the node uses them. Both are
// checked again under the mutex of the pin. keep is called without a mutex, and returns which unused pins stay nevertheless.
func (s *Store) Expire(ctx context.Context, before time.Time, inUse func(ID) bool, keep func(ctx context.Context, unused []Pin) map[ID]bool) error {
	var unused []Pin
	for _, p := range s.table.List() {
		if !p.UsedAt.Before(before) {
			continue
		}
		if inUse(p.ID) {
			if err := s.Touch(ctx, p.ID); err != nil {
				return err
			}
			continue
		}
		unused = append(unused, p)
	}
	kept := keep(ctx, unused)
	still := func(p Pin) bool { return p.UsedAt.Before(before) && !inUse(p.ID) }
	for _, p := range unused {
		if kept[p.ID] {
			continue
		}
		if _, _, err := s.removeIf(ctx, p.ID, Expired, still); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// KeepNone is for [Store.Expire]: all unused pins expire.
func KeepNone(context.Context, []Pin) map[ID]bool { return nil }

// Unknown returns [imagepin.UnknownPin] (ErrNotFound) for a pin that does not exist.
func Unknown(id ID) error {
	return &imagepin.Error{
		Reason: imagepin.UnknownPin, Ref: id.Ref, Class: errdefs.ErrNotFound,
		Message: fmt.Sprintf("it has no pin in scope %s", id.Scope), Hint: "To list the pins of this node, run: imagepin pin ls",
	}
}

// removeIf removes a pin if still reports true for it. still is called under the mutex of the pin. removeIf returns
// [imagepin.UnknownPin] (ErrNotFound) if there is no pin.
func (s *Store) removeIf(ctx context.Context, id ID, why Event, still func(Pin) bool) (p Pin, removed bool, err error) {
	if p, removed, err = s.unset(ctx, id, why, still); removed {
		err = s.config.Changed(ctx, p.Root.Digest)
	}
	return p, removed, err
}

// unset is removeIf without the call to Changed. It holds the mutex of the pin.
func (s *Store) unset(ctx context.Context, id ID, why Event, still func(Pin) bool) (_ Pin, removed bool, _ error) {
	if id.Scope == policy.LockScope {
		return Pin{}, false, Locked(id.Ref)
	}
	if err := s.write.Lock(ctx, id.String()); err != nil {
		return Pin{}, false, err
	}
	defer s.write.Unlock(id.String())
	p, ok := s.Get(id)
	if !ok {
		return Pin{}, false, Unknown(id)
	}
	if !still(p) {
		return p, false, nil
	}
	failpoint.Reach("pin.remove")
	if err := s.unrecord(ctx, id); err != nil {
		return Pin{}, false, err
	}
	failpoint.Reach("pin.removed")
	s.set(id, nil)
	s.config.Notify(ctx, why, p, "")
	return p, true, nil
}

// change reads, decides and writes one pin in one step. decide receives the current pin or nil, and returns the new
// pin. If it returns the same pointer, the pin stays as it is. A change that the record does not show, such as the hour
// of use, is only made in memory.
func (s *Store) change(ctx context.Context, id ID, decide func(old *Pin) (*Pin, Event, error)) (Pin, error) {
	was, now, err := s.update(ctx, id, decide)
	if err != nil || was != nil && was.Root.Digest == now.Root.Digest && was.Retain == now.Retain {
		return now, err
	}
	roots := []digest.Digest{now.Root.Digest}
	if was != nil {
		roots = append(roots, was.Root.Digest)
	}
	return now, s.config.Changed(ctx, roots...)
}

// update is change without the call to Changed. It holds the mutex of the pin.
func (s *Store) update(ctx context.Context, id ID, decide func(old *Pin) (*Pin, Event, error)) (was *Pin, now Pin, _ error) {
	if id.Scope == policy.LockScope {
		was, want, event, err := s.lock.change(id.Ref, decide)
		if err != nil || want == nil {
			return &Pin{}, Pin{}, err
		}
		if event != "" {
			s.config.Notify(ctx, event, *want, "")
		}
		return was, *want, nil
	}
	if err := s.write.Lock(ctx, id.String()); err != nil {
		return nil, Pin{}, err
	}
	defer s.write.Unlock(id.String())
	if p, ok := s.Get(id); ok {
		was = &p
	}
	want, event, err := decide(was)
	if err != nil || want == nil {
		return &Pin{}, Pin{}, err
	}
	if want == was {
		return was, *was, nil
	}
	if was == nil {
		release, err := s.reserve(ctx, *want)
		if err != nil {
			return nil, Pin{}, err
		}
		defer release()
	}
	if err := s.record(ctx, was, *want); err != nil {
		return nil, Pin{}, err
	}
	s.set(id, want)
	if event != "" {
		var previous digest.Digest
		if event == Moved {
			previous = was.Root.Digest
		}
		s.config.Notify(ctx, event, *want, previous)
	}
	return was, *want, nil
}

// plain returns a descriptor with only the fields that an image record keeps.
func plain(d ocispec.Descriptor) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
}
