package pins

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/typeurl/v2"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// pinEvents are the events of pins as a subscriber of containerd's gets them.
type pinEvents struct {
	t    *testing.T
	ctx  context.Context
	next <-chan *events.Envelope
	errs <-chan error
}

// subscribe listens as `ctr events` does, to what happens to pins.
func subscribe(r *testkit.Rig) *pinEvents {
	r.T.Helper()
	ctx, cancel := context.WithCancel(r.Ctx)
	r.T.Cleanup(cancel)
	next, errs := r.Client().EventService().Subscribe(ctx, `topic~="^/imagepin/pin/"`)
	return &pinEvents{t: r.T, ctx: r.Ctx, next: next, errs: errs}
}

// want waits for the next event and fails the test unless it is this one.
func (e *pinEvents) want(topic, ref, scope, digest, previous string) *api.PinEvent {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, 10*time.Second)
	defer cancel()
	select {
	case got := <-e.next:
		if got.Namespace != node.Namespace || got.Topic != topic {
			e.t.Errorf("event %s in namespace %s, not %s in %s", got.Topic, got.Namespace, topic, node.Namespace)
		}
		v, err := typeurl.UnmarshalAny(got.Event)
		if err != nil {
			e.t.Fatal(err)
		}
		event, ok := v.(*api.PinEvent)
		if !ok {
			e.t.Fatalf("event %s is a %T", got.Topic, v)
		}
		p := event.GetPin()
		if p.GetRef() != ref || p.GetScope() != scope || p.GetRoot().GetDigest() != digest || event.GetPrevious() != previous {
			e.t.Errorf("event %s is of %s in %s, %s after %q; not of %s in %s, %s after %q", got.Topic,
				p.GetRef(), p.GetScope(), p.GetRoot().GetDigest(), event.GetPrevious(), ref, scope, digest, previous)
		}
		return event
	case err := <-e.errs:
		e.t.Fatalf("instead of the event %s: %v", topic, err)
	case <-ctx.Done():
		e.t.Fatalf("there was no event %s", topic)
	}
	return nil
}

// TestPinsTellWhatHappensToThem subscribes to containerd's events in the namespace of Kubernetes' images.
func TestPinsTellWhatHappensToThem(t *testing.T) {
	r := testkit.NewRig(t, node.Options{Extra: testkit.PinRules})
	told := subscribe(r)
	ref, first := r.Push("pinned/app:1", images.Options{Version: "1"}, images.HostPlatform())

	r.MustPull(ref, "")
	made := told.want("/imagepin/pin/made", ref, "node", testkit.DigestIn(first), "")
	if made.GetPin().GetMadeBy() != "use" || !made.GetPin().GetRetain() {
		t.Errorf("the event of the pin that a pull made says %v", made)
	}
	r.MustPull(ref, "") // which changes nothing, and tells nothing

	_, second := r.Push("pinned/app:1", images.Options{Version: "2"}, images.HostPlatform())
	r.MustPull(ref, "")
	drift := told.want("/imagepin/pin/drifted", ref, "node", testkit.DigestIn(first), "")
	if drift.GetPin().GetDrift().GetDigest() != testkit.DigestIn(second) {
		t.Errorf("the event of a tag that has moved says %v, not that it means %s", drift, second)
	}
	r.MustPull(ref, "") // the same drift is told once

	if out, code := r.Operator("refresh", ref); code != 10 {
		t.Fatalf("imagepin refresh: %d: %s", code, out)
	}
	moved := told.want("/imagepin/pin/moved", ref, "node", testkit.DigestIn(second), testkit.DigestIn(first))
	if moved.GetPin().GetDrift() != nil || len(moved.GetPin().GetHistory()) != 1 {
		t.Errorf("the event of a refresh says %v", moved)
	}

	if out, code := r.Operator("pin", "rm", ref); code != 0 {
		t.Fatalf("imagepin pin rm: %d: %s", code, out)
	}
	told.want("/imagepin/pin/removed", ref, "node", testkit.DigestIn(second), "")

	r.MustPull(ref, "")
	told.want("/imagepin/pin/made", ref, "node", testkit.DigestIn(second), "")
}
