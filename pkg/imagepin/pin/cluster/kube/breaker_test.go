package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// enters reports whether a breaker lets a call through.
func enters(b *breaker) bool {
	_, f := b.enter()
	return f == nil
}

func newBreaker() (*breaker, *testClock) {
	clock := &testClock{now: time.Unix(1700000000, 0)}
	return &breaker{now: clock.Now}, clock
}

var down = &failure{err: &imagepin.Error{Reason: imagepin.ClusterUnavailable, Err: errors.New("down")}}

// TestPauses checks the length of the pauses: from one second to thirty, each with up to a quarter more.
func TestPauses(t *testing.T) {
	b, clock := newBreaker()
	for i, pause := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
		pause *= time.Second
		p, f := b.enter()
		if f != nil {
			t.Fatalf("failure %d: got %v, want a pass", i, f)
		}
		b.fail(p, down)
		clock.advance(pause - 1)
		if enters(b) {
			t.Errorf("failure %d: the pause is shorter than %s", i, pause)
		}
		clock.advance(pause/4 + 1)
	}
	b.reset()
	for range 2 {
		if !enters(b) {
			t.Error("calls do not pass after a success")
		}
	}
	p, _ := b.enter()
	b.fail(p, down)
	clock.advance(firstPause + firstPause/4)
	if !enters(b) {
		t.Error("the first pause after a success is longer than the first")
	}
}

// TestProbe checks that one call at a time tries again after a pause.
func TestProbe(t *testing.T) {
	b, clock := newBreaker()
	p, _ := b.enter()
	b.fail(p, down)
	clock.advance(time.Minute)
	probe, f := b.enter()
	if f != nil {
		t.Fatal("no call is let through after the pause")
	}
	if _, f := b.enter(); f != down {
		t.Errorf("got %v for a second call, want the failure", f)
	}
	// A call that shows nothing lets the next one try.
	b.giveUp(probe)
	probe, f = b.enter()
	if f != nil {
		t.Error("no other call is let through after one that gave up")
	}
	b.fail(probe, down)
	if enters(b) {
		t.Error("a call is let through after the failure of a probe")
	}
}

// TestFailuresAtOnce checks that of calls that fail at one time, only the first counts, and that failures of calls from
// before a success do not.
func TestFailuresAtOnce(t *testing.T) {
	b, clock := newBreaker()
	var passes []pass
	for range 10 {
		p, _ := b.enter()
		passes = append(passes, p)
	}
	for _, p := range passes[:9] {
		b.fail(p, down)
	}
	clock.advance(firstPause + firstPause/4)
	if !enters(b) {
		t.Error("ten failures at one time have lengthened the pause")
	}
	b.reset()
	b.fail(passes[9], down)
	if !enters(b) {
		t.Error("a failure of an earlier call counts after a success")
	}
	old, _ := b.enter()
	p, _ := b.enter()
	b.fail(p, down)
	b.giveUp(old)
	if enters(b) {
		t.Error("a call that gave up has ended the pause")
	}
}

// TestRequestsAfterAFailure counts the requests to a server that is not available, and to one that is again.
func TestRequestsAfterAFailure(t *testing.T) {
	a := startServer(t)
	c, clock := a.client()
	a.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	many := func() {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				_, err := c.Find(t.Context(), webOwner(), fmt.Sprintf("registry.example.com/shop/web:v%d", i), true)
				wantUnavailable(t, err, fmt.Sprintf("web:v%d: no request was sent so soon after a failure: the API server", i))
			})
		}
		wg.Wait()
	}
	for range 3 {
		wantUnavailable(t, c.call(t.Context(), callFind), "get ImagePin")
		many()
		if got := len(a.got()); got != 1 {
			t.Fatalf("%d requests, want 1", got)
		}
		clock.advance(10 * time.Second)
	}

	// While one call tries again, the others fail at once. Its success ends that.
	started, end := make(chan struct{}), make(chan struct{})
	a.on(func(http.ResponseWriter, *http.Request) bool {
		close(started)
		<-end
		a.on(nil)
		return false
	})
	probe := make(chan error)
	go func() { probe <- c.call(t.Context(), callFind) }()
	<-started
	many()
	close(end)
	if err := <-probe; err != nil {
		t.Fatal(err)
	}
	if got := len(a.got()); got != 1 {
		t.Errorf("%d requests, want 1", got)
	}
	for range 5 {
		if err := c.call(t.Context(), callFind); err != nil {
			t.Error(err)
		}
	}
	if got := len(a.got()); got != 5 {
		t.Errorf("%d requests, want 5", got)
	}
}

// TestFailuresAreLoggedOnce logs the first of consecutive failures with its cause, and the success after them.
func TestFailuresAreLoggedOnce(t *testing.T) {
	a := startServer(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	c, clock := newClient(t, kubeconfig)
	logger, hook := logtest.NewNullLogger()
	ctx := log.WithLogger(t.Context(), logrus.NewEntry(logger))
	a.addPod(webPod.Name, webPod.UID, nil)
	want := func(what string, lines ...string) {
		t.Helper()
		got := hook.AllEntries()
		hook.Reset()
		if len(got) != len(lines) {
			t.Fatalf("%s: got %d lines, want %q", what, len(got), lines)
		}
		for i, line := range lines {
			if text := fmt.Sprint(got[i].Message, ": ", got[i].Data[logrus.ErrorKey]); !strings.Contains(text, line) {
				t.Errorf("%s: got %q, want %q", what, text, line)
			}
		}
	}
	fail := func(calls ...string) {
		t.Helper()
		for range 3 {
			for _, call := range calls {
				wantUnavailable(t, c.call(ctx, call), "")
			}
			clock.advance(maxPause * 5 / 4)
		}
	}
	const down, up = "not available for ImagePins: ClusterUnavailable", "available for ImagePins again"
	fail(callOwnerOf, callFind)
	want("no kubeconfig", down)
	a.kubeconfig(kubeconfig, tokenUser)
	a.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	fail(callOwnerOf, callFind)
	want("the server fails", "500 Internal Server Error")
	a.on(nil)
	for range 3 {
		if err := c.call(ctx, callFind); err != nil {
			t.Error(err)
		}
	}
	want("the server answers", up)
	a.answer(http.NotFound)
	fail(callFind)
	want("ImagePins are not served", "does not serve ImagePins")
	a.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	fail(callOwnerOf)
	want("the server fails again", "500 Internal Server Error")
	a.on(nil)
	if err := c.call(ctx, callOwnerOf); err != nil {
		t.Error(err)
	}
	want("the server answers, but it is not known whether for ImagePins")
	if err := c.call(ctx, callFind); err != nil {
		t.Error(err)
	}
	want("ImagePins are served", up)
}

// TestCanceledProbe checks that a call whose caller goes away does not keep the others from trying.
func TestCanceledProbe(t *testing.T) {
	a := startServer(t)
	c, clock := a.client()
	a.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	wantUnavailable(t, c.call(t.Context(), callFind), "")
	clock.advance(time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	a.answer(func(_ http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() })
	if err := c.call(ctx, callFind); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	a.on(nil)
	if err := c.call(t.Context(), callFind); err != nil {
		t.Error(err)
	}
}

// TestUnservedKind checks that OwnerOf is not affected by a server that does not serve ImagePins, and that its success
// does not shorten the pauses of the other calls.
func TestUnservedKind(t *testing.T) {
	a := startServer(t)
	c, clock := a.client()
	a.addPod(webPod.Name, webPod.UID, nil)
	a.on(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/api/v1/namespaces/shop/pods/"+webPod.Name {
			return false
		}
		http.NotFound(w, r)
		return true
	})
	for range 6 {
		wantUnavailable(t, c.call(t.Context(), callFind), "get ImagePin")
		if err := c.call(t.Context(), callOwnerOf); err != nil {
			t.Error(err)
		}
		clock.advance(maxPause * 5 / 4)
	}
	wantUnavailable(t, c.call(t.Context(), callFind), "get ImagePin")
	if err := c.call(t.Context(), callOwnerOf); err != nil {
		t.Error(err)
	}
	clock.advance(maxPause - 1)
	wantUnavailable(t, c.call(t.Context(), callFind), "no request was sent so soon after a failure: the API server")
	wantUnavailable(t, c.call(t.Context(), callClaim), "no request was sent")
	clock.advance(maxPause)
	a.on(nil)
	if err := c.call(t.Context(), callClaim); err != nil {
		t.Error(err)
	}
	if err := c.call(t.Context(), callFind); err != nil {
		t.Error(err)
	}
}

// TestUnservedKindOfUnavailableServer checks that the two kinds of failures do not end or lengthen each other's pauses.
func TestUnservedKindOfUnavailableServer(t *testing.T) {
	a := startServer(t)
	c, clock := a.client()
	a.addPod(webPod.Name, webPod.UID, nil)
	unserved := func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/api/v1/namespaces/shop/pods/"+webPod.Name {
			return false
		}
		http.NotFound(w, r)
		return true
	}
	failing := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }
	a.on(unserved)
	for range 5 {
		wantUnavailable(t, c.call(t.Context(), callFind), "get ImagePin")
		clock.advance(maxPause * 5 / 4)
	}
	// The call that tries again fails for another reason. That does not make the pause of Find begin anew.
	a.answer(failing)
	wantUnavailable(t, c.call(t.Context(), callFind), "500 Internal Server Error")
	clock.advance(2 * firstPause)
	a.on(unserved)
	wantUnavailable(t, c.call(t.Context(), callFind), "get ImagePin")
	clock.advance(maxPause - time.Second)
	wantUnavailable(t, c.call(t.Context(), callFind), "no request was sent")

	// A call that is not made because of the one failure does not try again after the other.
	a.answer(failing)
	wantUnavailable(t, c.call(t.Context(), callOwnerOf), "500 Internal Server Error")
	a.on(unserved)
	clock.advance(maxPause * 5 / 4)
	wantUnavailable(t, c.call(t.Context(), callFind), "get ImagePin")
	a.answer(failing)
	wantUnavailable(t, c.call(t.Context(), callOwnerOf), "500 Internal Server Error")
	clock.advance(2 * firstPause)
	wantUnavailable(t, c.call(t.Context(), callFind), "no request was sent so soon after a failure: the API server "+a.Listener.Addr().String()+" does not serve")
	a.on(nil)
	if err := c.call(t.Context(), callOwnerOf); err != nil {
		t.Error(err)
	}
}
