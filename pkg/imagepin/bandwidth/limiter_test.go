package bandwidth

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// receive receives through a flow until ctx ends, and counts.
func receive(ctx context.Context, f *Flow, n *atomic.Int64) {
	for {
		got := len(f.Chunk(make([]byte, Burst)))
		if f.Received(ctx, got) != nil {
			return
		}
		n.Add(int64(got))
	}
}

// shares runs a number of flows of pods and of background work for a time, and returns what each has received.
func shares(t *testing.T, l *Limiter, d time.Duration, pods, others int, connections func(i int) int) []int64 {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	counts := make([]atomic.Int64, pods+others)
	var all sync.WaitGroup
	for i := range counts {
		fctx := ctx
		if i < pods {
			fctx = ForPod(ctx)
		}
		f := NewFlow(fctx, l)
		for range connections(i) {
			all.Go(func() { receive(ctx, f, &counts[i]) })
		}
	}
	time.Sleep(d)
	cancel()
	all.Wait()
	got := make([]int64, len(counts))
	for i := range counts {
		got[i] = counts[i].Load()
	}
	return got
}

func one(int) int { return 1 }

// TestShares checks on a fake clock what flows receive in 100 seconds: equal shares whatever their number of connections, and pods
// before background work.
func TestShares(t *testing.T) {
	const rate, seconds = 1 << 20, 100
	for name, c := range map[string]struct {
		pods, others int
		connections  func(int) int
		want         []float64 // of the rate
	}{
		"one":                     {1, 0, one, []float64{1}},
		"background alone":        {0, 1, one, []float64{1}},
		"two pods":                {2, 0, one, []float64{0.5, 0.5}},
		"four connections of one": {2, 0, func(i int) int { return 1 + 3*i }, []float64{0.5, 0.5}},
		"pods and background":     {2, 2, one, []float64{0.475, 0.475, 0.025, 0.025}},
		"one pod, much else":      {1, 5, func(int) int { return 4 }, []float64{0.95, 0.01, 0.01, 0.01, 0.01, 0.01}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &Limiter{}
				l.SetRate(rate)
				var sum int64
				for i, got := range shares(t, l, seconds*time.Second, c.pods, c.others, c.connections) {
					sum += got
					if want := int64(c.want[i] * rate * seconds); got < want-4*Burst || got > want+4*Burst {
						t.Errorf("flow %d: got %d bytes, want %d", i, got, want)
					}
				}
				if most := int64(rate*seconds + Burst); sum > most || sum < most-10*Burst {
					t.Errorf("got %d bytes, want %d", sum, most)
				}
			})
		})
	}
}

// TestUnusedShare checks that a flow gets what it needs if that is less than its share, and another one the rest. A pull that
// begins does not wait for what others have received before.
func TestUnusedShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 1 << 20
		l := &Limiter{}
		l.SetRate(rate)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var fast, slow atomic.Int64
		go receive(ctx, NewFlow(ctx, l), &fast)
		time.Sleep(time.Hour)
		f := NewFlow(ctx, l)
		before := fast.Load()
		for range 100 {
			start := time.Now()
			if err := f.Received(ctx, 10<<10); err != nil {
				t.Fatal(err)
			}
			slow.Add(10 << 10)
			if waited := time.Since(start); waited > 2*Burst*time.Second/rate {
				t.Errorf("a slow flow waited %s", waited)
			}
			time.Sleep(100*time.Millisecond - time.Since(start))
		}
		if got, want := fast.Load()-before, int64(10*rate)-slow.Load(); got < want-4*Burst || got > want+4*Burst {
			t.Errorf("the other flow has received %d bytes, want %d", got, want)
		}
	})
}

// TestSetRate checks that a new limit holds for flows that wait.
func TestSetRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Limiter{}
		f := NewFlow(t.Context(), l)
		if p := f.Chunk(make([]byte, 1<<20)); len(p) != 1<<20 || l.Rate() != 0 {
			t.Errorf("without a limit: a read of %d bytes", len(p))
		}
		start := time.Now()
		wait := func(n int, want time.Duration) {
			t.Helper()
			if err := f.Received(t.Context(), n); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took < want || took > want+time.Microsecond {
				t.Errorf("took %s, want %s", took, want)
			}
			start = time.Now()
		}
		wait(1<<30, 0)
		l.SetRate(1 << 10)
		if p := f.Chunk(make([]byte, 1<<20)); len(p) != 1<<10 {
			t.Errorf("a read of %d bytes, want %d", len(p), 1<<10)
		}
		wait(Burst, 0)
		wait(10<<10, 10*time.Second)
		time.AfterFunc(2*time.Second, func() {
			if w := f.Waits(); w != RateLimit {
				t.Errorf("waits for %q", w)
			}
			l.SetRate(4 << 10)
		})
		wait(10<<10, 4*time.Second) // 2 KiB, and 8 KiB at the new rate
		time.AfterFunc(3*time.Second, func() { l.SetRate(0) })
		wait(1<<30, 3*time.Second)
		if w := f.Waits(); w != "" || l.Rate() != 0 {
			t.Errorf("waits for %q with limit %d", w, l.Rate())
		}
	})
}

// TestWithLimit checks that the flows of a context share its limit below that of the node, and that a wait ends with its context.
func TestWithLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &Limiter{}
		node.SetRate(1 << 20)
		limited := WithLimit(t.Context(), 100<<10)
		ctx, cancel := context.WithCancel(t.Context())
		var a, b, other atomic.Int64
		go receive(ctx, NewFlow(limited, node), &a)
		go receive(ctx, NewFlow(limited, node), &b)
		go receive(ctx, NewFlow(ctx, node), &other)
		time.Sleep(100 * time.Second)
		for name, c := range map[string]struct{ got, want int64 }{
			"one": {a.Load(), 50 << 10 * 100}, "two": {b.Load(), 50 << 10 * 100}, "the rest": {other.Load(), 1<<20*100 - 100<<10*100},
		} {
			if c.got < c.want-4*Burst || c.got > c.want+4*Burst {
				t.Errorf("%s: got %d bytes, want %d", name, c.got, c.want)
			}
		}
		cancel()
		for _, none := range []int64{0, -1} {
			if WithLimit(t.Context(), none) != t.Context() {
				t.Errorf("a limit of %d is one", none)
			}
		}
		ended, end := context.WithCancel(t.Context())
		f := NewFlow(WithLimit(t.Context(), 1), nil)
		time.AfterFunc(time.Second, end)
		start := time.Now()
		if err := f.Received(ended, 2*Burst); !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
			t.Errorf("got %v after %s", err, time.Since(start))
		}
	})
}
