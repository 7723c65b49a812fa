package node

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// notifyGone reports that the registry no longer has the digest of a pin.
func (n *Node) notifyGone(ctx context.Context, p pin.Pin) { n.notify(ctx, pin.Gone, p, "") }

// lookUp looks up pins at their registries in the background, with the current interval, until ctx ends. It begins when the index is
// built.
func (s *Service) lookUp(ctx context.Context, ready <-chan struct{}) {
	select {
	case <-ready:
		s.node.lookups.Run(ctx, s.node.active.Load().Settings.LookupInterval)
	case <-ctx.Done():
	}
}

// lookupStatus adds what is known from lookups to a status.
func (n *Node) lookupStatus(now *active, st *api.PinStatus) {
	st.Gone = int64(n.lookups.Gone())
	st.LookupIntervalSeconds = int64(now.Settings.LookupInterval / time.Second)
	if at := n.lookups.Round(); !at.IsZero() {
		st.LookedUpAt = timestamppb.New(at)
	}
}

// goneProblem returns the problem of pins whose digest is gone.
func goneProblem(st *api.PinStatus) []*api.Problem {
	if st.GetGone() == 0 {
		return nil
	}
	return []*api.Problem{{
		Message: fmt.Sprintf("pins whose digest their registry no longer has: %d", st.GetGone()),
		Hint:    "Nodes that do not have it cannot pull it. Push the image again, or move the pin (imagepin refresh). To list them, run: imagepin pin ls",
	}}
}
