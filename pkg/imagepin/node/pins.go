package node

import (
	"context"
	"slices"
	"time"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/control"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/pause"
	"github.com/imagepin/imagepin/pkg/imagepin/metrics"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

const (
	// sweepPeriod is how often unused pins, images without a key and snapshots that no key needs are removed, and what
	// failed before is tried again.
	sweepPeriod = time.Hour
	// untaggedGrace is how long an image without a key is kept.
	untaggedGrace = time.Hour
)

// notify reports an event of a pin in the log, as a metric, and as an event of containerd.
func (n *Node) notify(ctx context.Context, e pin.Event, p pin.Pin, previous digest.Digest) {
	ctx = inNamespace(ctx)
	n.metrics.PinEvent(e)
	if c := n.active.Load().cluster; c != nil {
		c.Notify(e, p, previous)
	}
	entry := log.G(ctx).WithFields(log.Fields{"ref": p.Ref, "scope": string(p.Scope), "digest": p.Root.Digest})
	switch e {
	case pin.Drifted:
		entry.WithField("tag", p.Drift.Digest).Warn("a pinned tag has moved in its registry, the pin is unchanged")
	case pin.Gone:
		entry.Warn("the registry no longer has the digest of a pin, the pin is unchanged")
	case pin.Moved:
		entry.WithField("previous", previous).Info("pin is moved")
	default:
		entry.Infof("pin is %s", e)
	}
	event := &api.PinEvent{Pin: control.Pin(p), Previous: previous.String()}
	if err := n.containerd.Events.Publish(ctx, "/imagepin/pin/"+string(e), event); err != nil {
		entry.WithError(err).Warn("failed to publish a pin event")
	}
}

// sweep removes unused pins, images, snapshots and leases periodically until ctx ends. It retains images that a pin could
// not retain before.
func (s *Service) sweep(ctx context.Context) {
	for pause.Wait(ctx, sweepPeriod) == nil {
		if err := s.expirePins(ctx); err != nil && ctx.Err() == nil {
			log.G(ctx).WithError(err).Warn("failed to remove expired pins")
		}
		if err := s.reconciler.NoteUnkeyed(ctx); err != nil && ctx.Err() == nil {
			log.G(ctx).WithError(err).Warn("failed to list images without a key")
		}
		if err := s.reconciler.ReleaseOrphans(ctx); err != nil && ctx.Err() == nil {
			log.G(ctx).WithError(err).Warn("failed to release snapshots that no key needs")
		}
		if err := s.cri.RemoveUntagged(ctx, time.Now().Add(-untaggedGrace)); err != nil && ctx.Err() == nil {
			log.G(ctx).WithError(err).Warn("failed to remove images without a key")
		}
		s.reconciler.RepairDamaged()
		if expired := s.node.store.ExpiredBeside(); len(expired) > 0 {
			if err := s.cri.RemoveKeys(ctx, expired); err != nil && ctx.Err() == nil {
				log.G(ctx).WithError(err).Warn("failed to remove images that no runtime handler uses any more")
			}
		}
		if err := s.node.retainer.Retry(ctx); err != nil && ctx.Err() == nil {
			log.G(ctx).WithError(err).Warn("failed to retain images that were not retained before")
		}
		if err := s.node.leases.Retry(ctx); err != nil && ctx.Err() == nil {
			log.G(ctx).WithError(err).Warn("failed to delete the leases of finished calls")
		}
	}
}

// pinned reports whether a pin means or retains a digest.
func (n *Node) pinned(root digest.Digest) bool {
	return n.pins.Retains(root) || slices.ContainsFunc(n.pins.List(), func(p pin.Pin) bool { return p.Root.Digest == root })
}

// expirePins removes the pins that were not used for their time to live.
func (s *Service) expirePins(ctx context.Context) error {
	ttl := s.node.active.Load().Settings.PinTTL
	if ttl == 0 {
		return nil
	}
	used, err := s.cri.PinsInUse(ctx)
	if err != nil {
		return err
	}
	keep := pin.KeepNone
	if c := s.node.active.Load().cluster; c != nil {
		keep = c.Keep
	}
	return s.node.pins.Expire(ctx, time.Now().Add(-ttl), func(id pin.ID) bool { return used[id] }, keep)
}

// state returns the state that the node's metrics report.
func (n *Node) state() metrics.State {
	st := metrics.State{Keys: make(map[metrics.Target]int), Pins: map[string]int{"node": 0, "workload": 0, "lock": 0}}
	for _, t := range n.runtimes().Targets() {
		st.Keys[metrics.Target{Platform: t.Platform, Snapshotter: t.Snapshotter}] = 0
	}
	for _, img := range n.store.Images() {
		for _, e := range img.Entries {
			st.Keys[metrics.Target{Platform: e.Target.Platform, Snapshotter: e.Target.Snapshotter}]++
		}
	}
	for _, p := range n.pins.List() {
		kind := "workload"
		switch {
		case p.Scope == policy.LockScope:
			kind = "lock"
		case p.Scope.Namespace() == "":
			kind = "node"
		}
		st.Pins[kind]++
		if p.Drift != nil {
			st.Drifted++
			if st.OldestDrift.IsZero() || p.Drift.Since.Before(st.OldestDrift) {
				st.OldestDrift = p.Drift.Since
			}
		}
		if p.Provisional != nil {
			st.Provisional++
		}
	}
	st.Gone = n.lookups.Gone()
	settings := n.active.Load().Settings
	for _, used := range n.pins.Namespaces() {
		st.NamespacePins = max(st.NamespacePins, used)
	}
	st.NamespacePinsLimit = settings.MaxPinsPerNamespace
	st.RetainedBytes, st.RetainedBytesLimit = n.retainer.Bytes(), settings.MaxRetainedBytes
	st.Reconcile = time.Duration(n.reconcile.Load())
	return st
}
