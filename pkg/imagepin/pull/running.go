package pull

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Running is a pull in progress.
type Running struct {
	Ref    string
	Target runtimeplatform.Target
	Since  time.Time
	// Received is the number of bytes that were read from registries. Total is the number of bytes that the pull fetches,
	// as its manifest says; 0 until the manifest is known.
	Received, Total int64
	// Rate is the number of bytes per second over the last seconds, at most [rateSeconds].
	Rate int64
	// Left is the time until Total bytes are received at this rate; 0 if it is not known.
	Left time.Duration
	// Waits is what the pull waits for. It is empty while that is not known.
	Waits bandwidth.Wait
}

// waitsForUnpack is what a pull waits for that receives nothing and waits for no other pull.
const waitsForUnpack bandwidth.Wait = "unpack"

// meter counts the bytes of a pull. A nil meter counts nothing.
type meter struct {
	ref             string
	target          runtimeplatform.Target
	since           time.Time
	flow            *bandwidth.Flow
	received, total atomic.Int64
	chosen          atomic.Bool // total is known
	rate            rate
}

func (m *meter) add(n int) {
	if m != nil && n > 0 {
		m.received.Add(int64(n))
		m.rate.add(n, time.Since(m.since))
	}
}

func (m *meter) expect(n int64) {
	if m != nil {
		m.total.Store(n)
		m.chosen.Store(true)
	}
}

// running returns the state of the pull.
func (m *meter) running() Running {
	r := Running{
		Ref: m.ref, Target: m.target, Since: m.since, Received: m.received.Load(), Total: m.total.Load(),
		Rate: m.rate.now(time.Since(m.since)), Waits: m.flow.Waits(),
	}
	if left := r.Total - r.Received; left > 0 && r.Rate > 0 {
		r.Left = timeFor(left, r.Rate)
	}
	if r.Waits == "" && m.chosen.Load() {
		r.Waits = waitsForUnpack
	}
	return r
}

// arrived returns a function that returns how many bytes of an image of a size are on the node. Before the pull knows what is
// missing, these are the bytes that it has received. A nil meter knows nothing, and counts everything.
func (m *meter) arrived(size int64) func() int64 {
	if m == nil {
		return nil
	}
	return func() int64 {
		received, total := m.received.Load(), m.total.Load()
		if total == 0 {
			return received
		}
		return size - max(total-received, 0)
	}
}

// meters are the meters of the pulls in progress.
type meters struct {
	mu  sync.Mutex
	all map[*meter]struct{}
}

// start returns the meter of a pull, and a context for it. Call end when the pull ends.
func (s *meters) start(ctx context.Context, node *bandwidth.Limiter, ref string, t runtimeplatform.Target) (_ context.Context, m *meter, end func()) {
	m = &meter{ref: ref, target: t, since: time.Now(), flow: bandwidth.NewFlow(ctx, node)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = make(map[*meter]struct{})
	}
	s.all[m] = struct{}{}
	return bandwidth.With(ctx, m.flow), m, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, m)
	}
}

// Running returns the pulls in progress, the oldest first.
func (p *Puller) Running() []Running {
	p.meters.mu.Lock()
	defer p.meters.mu.Unlock()
	all := make([]Running, 0, len(p.meters.all))
	for m := range p.meters.all {
		all = append(all, m.running())
	}
	slices.SortFunc(all, func(a, b Running) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Ref, b.Ref), cmp.Compare(a.Target.String(), b.Target.String()))
	})
	return all
}
