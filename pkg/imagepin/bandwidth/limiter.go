package bandwidth

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// Burst is how many bytes are received without a pause, and at most in one read.
	Burst = 64 << 10
	// background is the cost of a byte of background work while pods wait too: they get 19 of 20 bytes, so that the connections
	// of background work stay open.
	background = 19
)

// Limiter limits what its flows receive together, in bytes per second. Flows that wait have equal shares, whatever they have
// received before, and what a flow does not use goes to the others (start-time fair queueing). Flows of pods go before
// background work. The zero value has no limit, and is ready for use.
type Limiter struct {
	limited atomic.Int64 // bytes per second; 0 is no limit

	mu      sync.Mutex
	bucket  *rate.Limiter
	timer   *time.Timer
	classes [2]class // background work, and pods
	served  int64    // the time at which the last class was served
	waiting []*share
}

// class is a class of flows. Its time passes while it is served.
type class struct{ time, flows int64 }

// share is the share of one flow.
type share struct {
	flow  *Flow
	time  int64 // passes while the flow is served
	queue []*waiter
}

type waiter struct {
	bytes   int
	granted chan struct{}
}

// SetRate sets the limit in bytes per second, also for flows that wait now. Zero or less means no limit.
func (l *Limiter) SetRate(bytesPerSecond int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := rate.Inf
	if bytesPerSecond > 0 {
		limit = rate.Limit(bytesPerSecond)
	}
	l.limited.Store(max(bytesPerSecond, 0))
	if l.bucket == nil {
		l.bucket = rate.NewLimiter(limit, Burst)
	} else {
		l.bucket.SetLimit(limit)
	}
	l.dispatch()
}

// Rate returns the limit in bytes per second; 0 is no limit.
func (l *Limiter) Rate() int64 { return l.limited.Load() }

// chunk returns how many bytes a flow may read at once: those of an eighth of a second. 0 is no limit.
func (l *Limiter) chunk() int {
	const least, second = 1 << 10, 8
	limit := l.Rate()
	if limit == 0 {
		return 0
	}
	return int(min(max(limit/second, least), Burst))
}

// wait waits until a flow may receive n bytes more.
func (l *Limiter) wait(ctx context.Context, s *share, n int) error {
	for n > 0 && l.Rate() > 0 {
		w := &waiter{bytes: min(n, Burst), granted: make(chan struct{})}
		n -= w.bytes
		l.enqueue(s, w)
		select {
		case <-w.granted:
		case <-ctx.Done():
			l.leave(s, w)
			return ctx.Err()
		}
	}
	return nil
}

func (l *Limiter) enqueue(s *share, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.queue = append(s.queue, w); len(s.queue) == 1 {
		c := l.class(s)
		if !slices.ContainsFunc(l.waiting, func(o *share) bool { return l.class(o) == c }) {
			c.time = max(c.time, l.served)
		}
		// A flow that has just read does not lose its place.
		s.time = max(s.time, c.flows-Burst)
		l.waiting = append(l.waiting, s)
	}
	l.dispatch()
}

// leave removes a waiter whose caller has gone.
func (l *Limiter) leave(s *share, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.queue = slices.DeleteFunc(s.queue, func(o *waiter) bool { return o == w })
	l.drop(s)
	l.dispatch()
}

// drop removes a share without waiters. The caller holds l.mu.
func (l *Limiter) drop(s *share) {
	if len(s.queue) == 0 {
		l.waiting = slices.DeleteFunc(l.waiting, func(o *share) bool { return o == s })
	}
}

func (l *Limiter) class(s *share) *class {
	if s.flow.pod.Load() {
		return &l.classes[1]
	}
	return &l.classes[0]
}

// next returns the share that is served next, or nil. The caller holds l.mu.
func (l *Limiter) next() (next *share) {
	for _, s := range l.waiting {
		if next == nil {
			next = s
			continue
		}
		a, b := l.class(s), l.class(next)
		switch {
		case a == b && s.time < next.time, a != b && (a.time < b.time || a.time == b.time && a == &l.classes[1]):
			next = s
		}
	}
	return next
}

// dispatch serves waiters as far as the limit allows, and sets a timer for the next one. Who that is, is decided then. The
// caller holds l.mu.
func (l *Limiter) dispatch() {
	for {
		s := l.next()
		if s == nil {
			return
		}
		w, now := s.queue[0], time.Now()
		if !l.bucket.AllowN(now, w.bytes) {
			missing := float64(w.bytes) - l.bucket.TokensAt(now)
			l.wakeIn(time.Duration(missing/float64(l.bucket.Limit())*float64(time.Second)) + time.Nanosecond)
			return
		}
		c, cost := l.class(s), int64(w.bytes)
		l.served, c.flows = c.time, max(c.flows, s.time)
		if s.time += cost; c == &l.classes[0] {
			cost *= background
		}
		c.time += cost
		s.queue = s.queue[1:]
		l.drop(s)
		close(w.granted)
	}
}

func (l *Limiter) wakeIn(d time.Duration) {
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = time.AfterFunc(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.dispatch()
	})
}
