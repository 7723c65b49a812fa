package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// record makes the waits of a client take no time, and returns them.
func record(c *Client) *[]time.Duration {
	var waits []time.Duration
	c.sessions.sleep = func(_ context.Context, d time.Duration) error {
		waits = append(waits, d)
		return nil
	}
	return &waits
}

// TestRetryAfter checks which answers are waited for, and how long: as the server asks, and more often than rest would.
func TestRetryAfter(t *testing.T) {
	tooMany := func(after string) http.HandlerFunc {
		// The form of API Priority and Fairness (tooManyRequests in k8s.io/apiserver/pkg/server/filters).
		return func(w http.ResponseWriter, _ *http.Request) {
			if after != "" {
				w.Header().Set("Retry-After", after)
			}
			http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
		}
	}
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		wait   time.Duration // 0: none
	}{
		{"429", tooMany("7"), 7 * time.Second},
		{"429 with a Status", func(w http.ResponseWriter, _ *http.Request) { refuse(w, apierrors.NewTooManyRequests("later", 5)) }, 5 * time.Second},
		{"429 without a time", tooMany(""), time.Second},
		{"429 with a date", tooMany("Fri, 31 Dec 1999 23:59:59 GMT"), time.Second},
		{"429 with 0", tooMany("0"), time.Second},
		{"503 with a time", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3")
			http.Error(w, "apiserver is shutting down", http.StatusServiceUnavailable)
		}, 3 * time.Second},
		{"500 of a timeout", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, apierrors.NewServerTimeout(schema.GroupResource{Resource: "imagepins"}, "create", 2))
		}, 2 * time.Second},
		{"503 without a time", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, 0},
		{"403 with a time", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3")
			http.Error(w, "no", http.StatusForbidden)
		}, 0},
	} {
		for _, call := range []string{callOwnerOf, callFind, callClaim} {
			t.Run(c.name+"/"+call, func(t *testing.T) {
				a := startServer(t)
				client, _ := a.client()
				waits := record(client)
				a.addPod(webPod.Name, webPod.UID, nil)
				const times = 15
				n := 0
				a.on(func(w http.ResponseWriter, r *http.Request) bool {
					if n++; n > times {
						return false
					}
					c.answer(w, r)
					return true
				})
				err := client.call(t.Context(), call)
				if c.wait == 0 {
					if err == nil || len(*waits) > 0 || n != 1 {
						t.Errorf("got error %v after %d requests and waits %v, want an error at once", err, n, *waits)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				var want []time.Duration
				for range times {
					want = append(want, c.wait)
				}
				if !reflect.DeepEqual(*waits, want) {
					t.Errorf("got waits %v, want %v", *waits, want)
				}
			})
		}
	}
}

// TestRetryAfterLaterThanTheDeadline checks that a call fails at once if waiting is in vain, and which calls this stops.
func TestRetryAfterLaterThanTheDeadline(t *testing.T) {
	a := startServer(t)
	c, _ := a.client()
	a.answer(func(w http.ResponseWriter, _ *http.Request) { refuse(w, apierrors.NewTooManyRequests("later", 600)) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	start := time.Now()
	wantUnavailable(t, c.call(ctx, callFind), "429 Too Many Requests: later (try again in 10m0s)")
	// Callers with more time are not affected.
	wantUnavailable(t, c.call(t.Context(), callFind), "get ImagePin")
	// But if it is longer than the timeout of all, they are.
	wantUnavailable(t, c.call(t.Context(), callFind), "no request was sent")
	if took := time.Since(start); took > 25*time.Second {
		t.Errorf("took %s", took)
	}
	if got := len(a.got()); got != 2 {
		t.Errorf("%d requests, want 2", got)
	}
}

// TestRealWait waits once as long as the server asks.
func TestRealWait(t *testing.T) {
	a := startServer(t)
	c, _ := a.client()
	first := true
	a.on(func(w http.ResponseWriter, _ *http.Request) bool {
		if !first {
			return false
		}
		first = false
		refuse(w, apierrors.NewTooManyRequests("later", 1))
		return true
	})
	start := time.Now()
	if err := c.call(t.Context(), callFind); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < time.Second {
		t.Errorf("waited for %s, want at least 1s", took)
	}
}

// TestSleep checks that a wait is never shorter than asked, that it differs between clients, and that it leaves time for
// the request.
func TestSleep(t *testing.T) {
	for _, c := range []struct {
		left     time.Duration // 0: no deadline
		min, max time.Duration // of a wait for 2s; 0: none
	}{
		{0, 2 * time.Second, 3 * time.Second},
		{time.Minute, 2 * time.Second, 3 * time.Second},
		{3 * time.Second, 2 * time.Second, 2500 * time.Millisecond},
		{2001 * time.Millisecond, 2 * time.Second, 2001 * time.Millisecond},
		{2 * time.Second, 0, 0},
		{time.Second, 0, 0},
	} {
		t.Run(fmt.Sprint(c.left), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seen := map[time.Duration]bool{}
				for range 100 {
					ctx, cancel := t.Context(), func() {}
					if c.left > 0 {
						ctx, cancel = context.WithTimeout(ctx, c.left)
					}
					start := time.Now()
					err := sleep(ctx, 2*time.Second)
					took := time.Since(start)
					cancel()
					seen[took] = true
					if took < c.min || took > c.max || (err == nil) != (c.max > 0) {
						t.Fatalf("slept for %s with error %v, want %s to %s", took, err, c.min, c.max)
					}
				}
				if c.max > 0 && len(seen) < 50 {
					t.Errorf("100 sleeps had %d different lengths", len(seen))
				}
			})
		})
	}
	t.Run("canceled", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			start := time.Now()
			if err := sleep(ctx, time.Hour); !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
				t.Errorf("got %v after %s", err, time.Since(start))
			}
		})
	})
}
