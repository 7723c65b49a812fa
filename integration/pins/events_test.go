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

// pinEvents receives the events of pins from containerd.
type pinEvents struct {
	t    *testing.T
	ctx  context.Context
	next <-chan *events.Envelope
	errs <-chan error
}

// subscribe subscribes to the events of pins, as `ctr events` does.
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
			e.t.Errorf("got event %s in namespace %s, want %s in %s", got.Topic, got.Namespace, topic, node.Namespace)
		}
		v, err := typeurl.UnmarshalAny(got.Event)
		if err != nil {
			e.t.Fatal(err)
		}
		event, ok := v.(*api.PinEvent)
		if !ok {
			e.t.Fatalf("event %s: got type %T", got.Topic, v)
		}
		p := event.GetPin()
		if p.GetRef() != ref || p.GetScope() != scope || p.GetRoot().GetDigest() != digest || event.GetPrevious() != previous {
			e.t.Errorf("event %s: got pin of %s in scope %s at %s (was %q), want %s in scope %s at %s (was %q)", got.Topic,
				p.GetRef(), p.GetScope(), p.GetRoot().GetDigest(), event.GetPrevious(), ref, scope, digest, previous)
		}
		return event
	case err := <-e.errs:
		e.t.Fatalf("waiting for event %s: %v", topic, err)
	case <-ctx.Done():
		e.t.Fatalf("timed out waiting for event %s", topic)
	}
	return nil
}

// TestPinEvents checks the events of pins that containerd publishes in the namespace k8s.io.
func TestPinEvents(t *testing.T) {
	r := testkit.NewRig(t, node.Options{Extra: testkit.PinRules})
	published := subscribe(r)
	ref, first := r.Push("pinned/app:1", images.Options{Version: "1"}, images.HostPlatform())

	r.MustPull(ref, "")
	made := published.want("/imagepin/pin/made", ref, "node", testkit.DigestIn(first), "")
	if made.GetPin().GetMadeBy() != "use" || !made.GetPin().GetRetain() {
		t.Errorf("event made: got %v", made)
	}
	r.MustPull(ref, "") // no change, no event

	_, second := r.Push("pinned/app:1", images.Options{Version: "2"}, images.HostPlatform())
	r.MustPull(ref, "")
	drift := published.want("/imagepin/pin/drifted", ref, "node", testkit.DigestIn(first), "")
	if drift.GetPin().GetDrift().GetDigest() != testkit.DigestIn(second) {
		t.Errorf("event drifted: got %v, want drift to %s", drift, second)
	}
	r.MustPull(ref, "") // no second event for the same drift

	if out, code := r.Operator("refresh", ref); code != 10 {
		t.Fatalf("imagepin refresh: exit code %d: %s", code, out)
	}
	moved := published.want("/imagepin/pin/moved", ref, "node", testkit.DigestIn(second), testkit.DigestIn(first))
	if moved.GetPin().GetDrift() != nil || len(moved.GetPin().GetHistory()) != 1 {
		t.Errorf("event moved: got %v", moved)
	}

	if out, code := r.Operator("pin", "rm", ref); code != 0 {
		t.Fatalf("imagepin pin rm: exit code %d: %s", code, out)
	}
	published.want("/imagepin/pin/removed", ref, "node", testkit.DigestIn(second), "")

	r.MustPull(ref, "")
	published.want("/imagepin/pin/made", ref, "node", testkit.DigestIn(second), "")
}
