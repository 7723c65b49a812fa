//go:build unix

package serve

import (
	"context"
	"time"

	"github.com/containerd/containerd/v2/core/events"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/imagepin/imagepin/pkg/imagepin/node"
)

// eventService is containerd's event service over its socket.
type eventService struct{ node.Events }

// subscribedTopic is the topic of the events that show that a subscription has started.
const subscribedTopic = "/imagepin/subscribed"

// Subscribe implements node.Events. Over the socket, a subscription starts some time after the call, and events in
// between are not delivered. So Subscribe publishes an event of its own until it receives it, and only then returns.
func (e eventService) Subscribe(ctx context.Context, filters ...string) (<-chan *events.Envelope, <-chan error) {
	all, failed := e.Events.Subscribe(ctx, append(filters, `topic=="`+subscribedTopic+`"`)...)
	errs := make(chan error, 1)
	early, err := e.await(ctx, all, failed)
	if err != nil {
		errs <- err
		return nil, errs
	}
	out := make(chan *events.Envelope)
	go func() {
		for _, event := range early {
			select {
			case out <- event:
			case <-ctx.Done():
				return
			}
		}
		for {
			select {
			case event := <-all:
				if event.Topic == subscribedTopic {
					continue
				}
				select {
				case out <- event:
				case <-ctx.Done():
					return
				}
			case err := <-failed:
				errs <- err
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, errs
}

// await returns the events that were received before the first event of its own.
func (e eventService) await(ctx context.Context, all <-chan *events.Envelope, failed <-chan error) (early []*events.Envelope, _ error) {
	const interval = 50 * time.Millisecond
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			if err := e.Publish(ctx, subscribedTopic, &emptypb.Empty{}); err != nil {
				return nil, err
			}
			timer.Reset(interval)
		case event := <-all:
			if event.Topic == subscribedTopic {
				return early, nil
			}
			early = append(early, event)
		case err := <-failed:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
