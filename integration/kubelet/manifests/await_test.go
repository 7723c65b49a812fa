package manifests

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/imagepin/imagepin/integration/testkit"
)

// timeout is how long tests wait for a controller or for a watch of the API server.
const timeout = time.Minute

// await watches the objects at a path until done reports true for an event, and returns the event's object. Without a
// resourceVersion in the path, the first events are the objects that exist. what describes the event in a failure.
func await[T any](t *testing.T, s *server, path, what string, done func(watch.EventType, *T) bool) *T {
	t.Helper()
	ctx, cancel := context.WithTimeout(testkit.Context(t), timeout)
	defer cancel()
	resp, err := s.Send(ctx, "GET", path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for events := json.NewDecoder(resp.Body); ; {
		var e struct {
			Type   watch.EventType
			Object *T
		}
		if err := events.Decode(&e); err != nil {
			t.Fatalf("did not happen: %s: %v", what, err)
		}
		if done(e.Type, e.Object) {
			return e.Object
		}
	}
}

// eventually waits until a request is permitted. The authorizers learn of new objects by watches, and there is no event for
// when they did.
func eventually(t *testing.T, what string, request func(context.Context) error) {
	t.Helper()
	var last error
	defer func() {
		if last != nil {
			t.Log(last)
		}
	}()
	testkit.EventuallyIn(t, timeout, what, func(ctx context.Context) (bool, error) {
		last = request(ctx)
		return last == nil, nil
	})
}
