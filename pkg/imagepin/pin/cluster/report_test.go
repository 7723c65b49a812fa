package cluster

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/pin/cluster/kube"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// fakeEvents records events.
type fakeEvents struct {
	mu  sync.Mutex
	all []kube.Event
	err error
}

func (f *fakeEvents) Report(_ context.Context, e kube.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, e)
	return f.err
}

func (f *fakeEvents) got() []kube.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all
}

// TestReportsClaims reports claims that are won and lost on their owner.
func TestReportsClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &fakeEvents{err: errors.New("refused")}
		r := NewReporter(events, EventDelay)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.Run(ctx)
		a := newFakeAPI()
		for _, d := range []digest.Digest{one, two} {
			c := NewClaims(ClaimsConfig{API: a, Observer: &outcomes{}, Reporter: r, Recheck: time.Minute})
			if _, err := c.Claim(t.Context(), pod, image, d); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(EventDelay - time.Nanosecond)
		if got := events.got(); len(got) != 0 {
			t.Errorf("got %+v before the delay has passed", got)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		got := events.got()
		if len(got) != 2 {
			t.Fatalf("got %+v, want two events", got)
		}
		for i, want := range []struct{ reason, note string }{
			{"ImagePinned", image + " is pinned to " + one.String()},
			{"ImageClaimLost", image + " resolved to " + two.String() + " for pod web-1-x2x9z"},
		} {
			if e := got[i]; e.Reason != want.reason || !strings.Contains(e.Note, want.note) || e.Namespace != "shop" || e.Owner.Name != "web-1" {
				t.Errorf("got %+v, want %+v", e, want)
			}
		}
	})
}

// TestReportLimits sends an event once, limits the rate, and drops events instead of waiting.
func TestReportLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &fakeEvents{}
		r := NewReporter(events, EventDelay)
		owner := policy.Owner{Kind: "ReplicaSet", Name: "web-1", UID: "1"}
		for range 2 {
			for i := range 2 * maxQueued {
				r.Drifted("shop", owner, image, one, digest.FromBytes([]byte{byte(i)}))
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.Run(ctx)
		time.Sleep(EventDelay + 10*eventPeriod + eventPeriod/2)
		if got, want := len(events.got()), eventBurst+10; got != want {
			t.Errorf("after 10 periods: got %d events, want %d", got, want)
		}
		time.Sleep(time.Hour)
		if got := len(events.got()); got != maxQueued {
			t.Errorf("got %d events, want %d", got, maxQueued)
		}
		r.Moved("shop", owner, image, one, two)
		time.Sleep(EventDelay + time.Second)
		if last := events.got()[maxQueued]; last.Reason != "ImagePinMoved" || last.Owner.APIVersion != "apps/v1" {
			t.Errorf("got %+v, want an event of the ReplicaSet", last)
		}
	})
}

// TestReportAfterRestart sends an event that waits when Run ends, as for a reload, in the next Run.
func TestReportAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &fakeEvents{}
		r := NewReporter(events, EventDelay)
		first, reload := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			r.Run(first)
			close(ended)
		}()
		r.Moved("shop", policy.Owner{Kind: "ReplicaSet", Name: "web-1", UID: "1"}, image, one, two)
		synctest.Wait() // the event is not in the queue any more
		reload()
		<-ended
		second, end := context.WithCancel(t.Context())
		defer end()
		go r.Run(second)
		time.Sleep(2 * EventDelay)
		if got := events.got(); len(got) != 1 || got[0].Reason != "ImagePinMoved" {
			t.Errorf("got %+v, want the event from before the restart", got)
		}
	})
}
