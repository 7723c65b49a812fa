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

// Follow makes a pin, or moves it, to the digest that the cluster has for it. claimer is the node that created the pin in
// the cluster, or "". A provisional pin is not provisional afterwards. Follow returns the same errors as [Store.MakeForNamespace].
func (s *Store) Follow(ctx context.Context, id ID, root ocispec.Descriptor, retain bool, claimer string) (Pin, error) {
	return s.withRoom(ctx, func() (Pin, error) {
		return s.change(ctx, id, func(old *Pin) (*Pin, Event, error) {
			if old != nil {
				retain = retain || old.Retain
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

// Unfollow removes the node's copy of a pin that the cluster does not have any more, unless the copy has changed since it
// was read.
func (s *Store) Unfollow(ctx context.Context, read Pin) error {
	same := func(now Pin) bool {
		return now.Root.Digest == read.Root.Digest && now.MadeAt.Equal(read.MadeAt) && now.By == read.By
	}
	if _, _, err := s.removeIf(ctx, read.ID, Removed, same); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
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
