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

// subscribedTopic is that of the events which show that a subscription has
// begun.
const subscribedTopic = "/imagepin/subscribed"

// Subscribe implements node.Events. Over the socket a subscription begins some
// time after it was asked for, and what happens until then is not told. So an
// event of our own is published until it is seen; only then Subscribe returns.
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

// await gives what was told before the first of our own events came back.
func (e eventService) await(ctx context.Context, all <-chan *events.Envelope, failed <-chan error) (early []*events.Envelope, _ error) {
	const again = 50 * time.Millisecond
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			if err := e.Publish(ctx, subscribedTopic, &emptypb.Empty{}); err != nil {
				return nil, err
			}
			timer.Reset(again)
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
