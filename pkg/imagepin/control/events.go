package control

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// bufferedEvents is how many events wait for a caller. If there are more, they are lost for this caller.
const bufferedEvents = 4096

// Events implements the API. It is not a call of the guard while it waits for events: an uninstall waits for these calls.
func (s *Server) Events(r *api.EventsRequest, stream grpc.ServerStreamingServer[api.Event]) error {
	matches, err := guarded(stream.Context(), s, "Events", func(context.Context) (func(string) bool, error) { return matcher(r.GetRefGlob()) })
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(namespaces.WithNamespace(stream.Context(), s.config.Namespace))
	defer cancel()
	published, failed := s.config.Events.Subscribe(ctx, eventFilter(s.config.Namespace))
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	b := eventBuffer{all: make(chan *api.Event, bufferedEvents)}
	ended := make(chan error, 1)
	go func() {
		ended <- b.fill(ctx, published, failed, func(e *events.Envelope) *api.Event {
			decoded := s.event(ctx, e)
			if decoded == nil || r.GetRefGlob() != "" && !matches(decoded.GetRef()) {
				return nil
			}
			return decoded
		})
	}()
	for {
		select {
		case e := <-b.all:
			if err := stream.Send(e); err != nil {
				return err
			}
		case err := <-ended:
			return errgrpc.ToGRPC(err)
		}
	}
}

// eventFilter selects the events of images, content, snapshots, pins and locks in a namespace.
func eventFilter(namespace string) string {
	return fmt.Sprintf("namespace==%q,topic~=%q", namespace, "^/(images|content|snapshot|imagepin/(pin|lock))/")
}

// eventBuffer has the events that a caller has not read. containerd buffers without a limit.
type eventBuffer struct {
	all  chan *api.Event
	lost int64 // since the last event in all
}

// fill adds events until ctx or the subscription ends, and returns why. decode returns nil for an event to omit.
func (b *eventBuffer) fill(ctx context.Context, published <-chan *events.Envelope, failed <-chan error, decode func(*events.Envelope) *api.Event) error {
	for {
		select {
		case e := <-published:
			if decoded := decode(e); decoded != nil {
				b.add(decoded)
			}
		case err := <-failed:
			if err == nil {
				err = errdefs.ErrUnavailable
			}
			return fmt.Errorf("containerd's event stream has ended: %w", err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (b *eventBuffer) add(e *api.Event) {
	e.Lost = b.lost
	select {
	case b.all <- e:
		b.lost = 0
	default:
		b.lost++
	}
}
