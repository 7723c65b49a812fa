package pin

import (
	"context"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Claimant is the pod for which a provisional pin was made. Its namespace is that of the pin's scope.
type Claimant struct {
	Name, UID string
}

// String returns the claimant as it is recorded: "<name>/<uid>".
func (c Claimant) String() string { return c.Name + "/" + c.UID }

// parseClaimant parses the label of a provisional pin. It returns nil if the label is empty or not valid.
func parseClaimant(label string) *Claimant {
	name, uid, ok := strings.Cut(label, "/")
	if !ok || name == "" || uid == "" {
		return nil
	}
	return &Claimant{Name: name, UID: uid}
}

// Followed is the result of [Store.Follow].
type Followed struct {
	Pin
	// GaveWay is the provisional pin with another digest that this call has moved, or nil. It is also set if the call fails
	// after that.
	GaveWay *Pin
}

// Follow makes a pin, or moves it, to the digest that the cluster has for it. claimer is the node that created the pin in
// the cluster, or "". A provisional pin is not provisional afterwards. Follow returns the same errors as [Store.MakeForNamespace].
func (s *Store) Follow(ctx context.Context, id ID, root ocispec.Descriptor, retain bool, claimer string) (Followed, error) {
	var gaveWay *Pin
	held, err := s.withRoom(ctx, func() (Pin, error) {
		return s.change(ctx, id, func(old *Pin) (*Pin, Event, error) {
			if old != nil {
				retain = retain || old.Retain
			}
			if gaveWay = nil; old != nil && old.Provisional != nil && old.Root.Digest != root.Digest {
				gaveWay = old
			}
			p, event, err := moved(old, id, root, ByCluster, retain)
			if err != nil {
				return nil, "", err
			}
			p.By, p.Provisional, p.Claimer, p.UsedAt = ByCluster, nil, claimer, time.Now()
			if old != nil && old.Root.Digest == root.Digest {
				p.Drift = old.Drift
			}
			return p, event, nil
		})
	})
	if held.Root.Digest != root.Digest {
		gaveWay = nil // the write has failed
	}
	return Followed{Pin: held, GaveWay: gaveWay}, err
}

// WasCopy reports whether the pin was a copy of the cluster's pin before it moved to its digest. Otherwise it was
// provisional.
func (p Pin) WasCopy() bool {
	return len(p.History) > 0 && p.History[len(p.History)-1].By == ByCluster
}

// MakeProvisional is [Store.MakeForNamespace] for a pin that the cluster does not have yet, because its API server does
// not answer. It is claimed for the pod of the last call, which most likely still exists.
func (s *Store) MakeProvisional(ctx context.Context, id ID, root ocispec.Descriptor, retain bool, pod Claimant) (Pin, error) {
	return s.withRoom(ctx, func() (Pin, error) {
		return s.change(ctx, id, func(old *Pin) (*Pin, Event, error) {
			now := time.Now()
			if old != nil {
				p := *old
				if p.UsedAt = now; p.Provisional != nil {
					p.Provisional = &pod
				}
				return &p, "", nil
			}
			return &Pin{
				ID: id, Root: plain(root), MadeAt: now, UsedAt: now, By: ByUse, Retain: retain, Provisional: &pod,
			}, Made, nil
		})
	})
}

// Unfollow removes the node's copy of a pin that the cluster does not have any more, or a provisional pin of which the node
// has a copy. It does nothing if the pin has changed since it was read. removed reports whether this call has removed
// it, also if the call fails after that.
func (s *Store) Unfollow(ctx context.Context, read Pin) (removed bool, _ error) {
	same := func(now Pin) bool {
		if (now.Provisional == nil) != (read.Provisional == nil) || now.Provisional != nil && *now.Provisional != *read.Provisional {
			return false // another pod has used it
		}
		return now.Root.Digest == read.Root.Digest && now.MadeAt.Equal(read.MadeAt) && now.By == read.By
	}
	_, removed, err := s.removeIf(ctx, read.ID, Removed, same)
	if errdefs.IsNotFound(err) {
		err = nil
	}
	return removed, err
}

// Provisional returns the provisional pins, ordered as [Store.List].
func (s *table) Provisional() []Pin {
	var pins []Pin
	for _, p := range s.List() {
		if p.Provisional != nil {
			pins = append(pins, p)
		}
	}
	return pins
}
