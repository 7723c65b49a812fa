//go:build unix

package serve

import (
	"context"
	"errors"
	"testing"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	ctdexchange "github.com/containerd/containerd/v2/core/events/exchange"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/typeurl/v2"
)

// lateEvents is an event service whose subscriptions start after the call returns, as over a socket.
type lateEvents struct {
	*ctdexchange.Exchange
	begin chan struct{}
	fails error
	lost  chan struct{} // receives for each event that is published before the subscription starts
}

func (l *lateEvents) Publish(ctx context.Context, topic string, event events.Event) error {
	select {
	case <-l.begin:
	case l.lost <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	return l.Exchange.Publish(ctx, topic, event)
}

func (l *lateEvents) Subscribe(ctx context.Context, filters ...string) (<-chan *events.Envelope, <-chan error) {
	out, errs := make(chan *events.Envelope), make(chan error, 1)
	if l.fails != nil {
		errs <- l.fails
		return out, errs
	}
	go func() {
		<-l.begin
		in, failed := l.Exchange.Subscribe(ctx, filters...)
		for {
			select {
			case e := <-in:
				out <- e
			case err := <-failed:
				errs <- err
				return
			}
		}
	}()
	return out, errs
}

func TestSubscribeReturnsWhenStarted(t *testing.T) {
	late := &lateEvents{Exchange: ctdexchange.NewExchange(), begin: make(chan struct{}), lost: make(chan struct{})}
	ctx, cancel := context.WithCancel(namespaces.WithNamespace(t.Context(), "k8s.io"))
	defer cancel()
	type subscription struct {
		events <-chan *events.Envelope
		failed <-chan error
	}
	subscribed := make(chan subscription)
	go func() {
		e, f := eventService{late}.Subscribe(ctx, `topic~="^/images/"`)
		subscribed <- subscription{e, f}
	}()
	for range 3 {
		select {
		case <-subscribed:
			t.Fatal("Subscribe returned before the subscription started")
		case <-late.lost: // an event that Subscribe published
		}
	}
	close(late.begin)
	s := <-subscribed
	for _, name := range []string{"a", "b"} {
		if err := late.Publish(ctx, "/images/create", &eventsapi.ImageCreate{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"a", "b"} {
		select {
		case e := <-s.events:
			v, err := typeurl.UnmarshalAny(e.Event)
			if err != nil {
				t.Fatal(err)
			}
			if got := v.(*eventsapi.ImageCreate).Name; got != want {
				t.Errorf("got the event of %s, want %s", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("did not receive the event of %s", want)
		}
	}
}

func TestSubscribeFails(t *testing.T) {
	unavailable := errors.New("unavailable")
	ctx := namespaces.WithNamespace(t.Context(), "k8s.io")
	begun := make(chan struct{})
	close(begun)
	_, failed := eventService{&lateEvents{Exchange: ctdexchange.NewExchange(), begin: begun, fails: unavailable}}.Subscribe(ctx)
	if err := <-failed; !errors.Is(err, unavailable) {
		t.Errorf("got %v, want %v", err, unavailable)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, failed = eventService{&lateEvents{Exchange: ctdexchange.NewExchange(), begin: make(chan struct{})}}.Subscribe(canceled)
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}
