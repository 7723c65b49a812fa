package control

import (
	"cmp"
	"context"
	"slices"

	eventtypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/go-digest"
	"google.golang.org/protobuf/types/known/timestamppb"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// event decodes an event. It returns nil if that is not possible, for example for an event of another tool.
func (s *Server) event(ctx context.Context, e *events.Envelope) *api.Event {
	if e == nil || e.Event == nil {
		return nil
	}
	decoded, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		log.G(ctx).WithError(err).WithField("topic", e.Topic).Debug("ignoring an event that cannot be decoded")
		return nil
	}
	a := &api.Event{At: timestamppb.New(e.Timestamp), Topic: e.Topic}
	switch v := decoded.(type) {
	case *eventtypes.ImageCreate:
		s.imageEvent(ctx, a, v.GetName(), v.GetLabels())
	case *eventtypes.ImageUpdate:
		s.imageEvent(ctx, a, v.GetName(), v.GetLabels())
	case *eventtypes.ImageDelete:
		a.Ref = v.GetName()
	case *eventtypes.ContentCreate:
		a.Digest, a.Size = v.GetDigest(), v.GetSize()
	case *eventtypes.ContentDelete:
		a.Digest = v.GetDigest()
	case *eventtypes.SnapshotPrepare:
		a.Snapshot, a.Parent, a.Snapshotter = v.GetKey(), v.GetParent(), v.GetSnapshotter()
	case *eventtypes.SnapshotCommit:
		a.Snapshot, a.Snapshotter = v.GetName(), v.GetSnapshotter()
	case *eventtypes.SnapshotRemove:
		a.Snapshot, a.Snapshotter = v.GetKey(), v.GetSnapshotter()
	case *api.PinEvent:
		p := v.GetPin()
		a.Ref, a.Digest, a.Scope, a.Previous, a.Drift = p.GetRef(), p.GetRoot().GetDigest(), p.GetScope(), v.GetPrevious(), p.GetDrift().GetDigest()
	case *api.LockEvent:
		a.Digest, a.Previous = v.GetLock(), v.GetPrevious()
	default:
		return nil
	}
	return a
}

// imageEvent adds what is known of an image record: the digest that it targets now, and the targets of the keys that it
// carried when the event was published.
func (s *Server) imageEvent(ctx context.Context, a *api.Event, name string, labels map[string]string) {
	a.Ref = name
	if img, err := s.config.Records.Get(ctx, name); err == nil {
		a.Digest = img.Target.Digest.String()
	} else if d, err := digest.Parse(name); err == nil {
		a.Digest = d.String()
	}
	for label, value := range labels {
		if !imagepin.IsKeyLabel(label) {
			continue
		}
		e, err := imagepin.DecodeKeyLabel(label, value)
		if err == nil && !slices.ContainsFunc(a.Targets, func(t *api.Target) bool {
			return t.GetPlatform() == e.Target.Platform && t.GetSnapshotter() == e.Target.Snapshotter
		}) {
			a.Targets = append(a.Targets, Target(e.Target))
		}
	}
	slices.SortFunc(a.Targets, func(a, b *api.Target) int {
		return cmp.Or(cmp.Compare(a.GetPlatform(), b.GetPlatform()), cmp.Compare(a.GetSnapshotter(), b.GetSnapshotter()))
	})
}
