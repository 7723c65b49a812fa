package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
)

const (
	leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	// leaseSeconds is how long a lease is valid, and renewTimeout how long kubelet waits for its renewal (a quarter of it).
	leaseSeconds = 40
	renewTimeout = leaseSeconds / 4 * time.Second
)

// heartbeats are nodes that renew their leases, as kubelet does.
type heartbeats struct {
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	phase *phase // nil while nothing is measured
}

// beats are the renewals of a phase.
type beats struct {
	took   []float64     // nanoseconds, of those that succeeded
	oldest time.Duration // the maximum age of a lease at the end of a renewal that was to renew it
	failed int
	first  error // the first failure
}

// phase is a time in which the renewals that begin are measured.
type phase struct {
	h       *heartbeats
	pending sync.WaitGroup

	mu sync.Mutex
	beats
}

// startHeartbeats creates the leases of n nodes, and renews each of them once in a period.
func startHeartbeats(ctx context.Context, kube *server, n int, period time.Duration) (*heartbeats, error) {
	hearts := make([]*heart, n)
	err := parallel(ctx, n, func(ctx context.Context, i int) (err error) {
		hearts[i], err = newHeart(ctx, kube, fmt.Sprintf("heartbeat-%05d", i))
		return err
	})
	if err != nil {
		return nil, err
	}
	h := &heartbeats{}
	ctx, h.cancel = context.WithCancel(ctx)
	for i, one := range hearts {
		h.running.Go(func() { h.renew(ctx, one, period, period*time.Duration(i)/time.Duration(n)) })
	}
	return h, nil
}

func (h *heartbeats) stop() {
	h.cancel()
	h.running.Wait()
}

// renew renews a lease until ctx ends.
func (h *heartbeats) renew(ctx context.Context, one *heart, period, after time.Duration) {
	if pause(ctx, after) != nil {
		return
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		p := h.enter()
		start, last := time.Now(), one.renewed
		err := one.renew(ctx)
		p.leave(time.Since(start), time.Since(last), err)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// begin begins a phase.
func (h *heartbeats) begin() *phase {
	p := &phase{h: h}
	h.set(p)
	return p
}

func (h *heartbeats) set(p *phase) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.phase = p
}

// end ends the phase, and waits for the renewals that have begun in it.
func (p *phase) end() beats {
	p.h.set(nil)
	p.pending.Wait()
	return p.beats
}

// enter returns the phase of a renewal, or nil.
func (h *heartbeats) enter() *phase {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != nil {
		h.phase.pending.Add(1)
	}
	return h.phase
}

// leave ends a renewal. age is the time since the renewal before that succeeded.
func (p *phase) leave(took, age time.Duration, err error) {
	if p == nil {
		return
	}
	defer p.pending.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.oldest = max(p.oldest, age)
	if err == nil {
		p.took = append(p.took, float64(took))
		return
	}
	if p.failed++; p.first == nil {
		p.first = err
	}
}

// heart is a node that renews its lease.
type heart struct {
	client  *cluster.Client
	lease   *coordination.Lease
	renewed time.Time
	stale   bool // the last renewal failed
}

// newHeart creates the lease of a node, as the node.
func newHeart(ctx context.Context, kube *server, name string) (*heart, error) {
	c, err := kube.Node(name)
	if err != nil {
		return nil, err
	}
	one := &heart{client: c, lease: &coordination.Lease{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec:       coordination.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: new(int32(leaseSeconds)), RenewTime: now()},
	}}
	err = c.Do(ctx, "POST", leases, one.lease, one.lease)
	one.renewed = time.Now()
	return one, err
}

func (one *heart) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	// After a failure, the lease may have been renewed. kubelet reads it again then.
	if one.stale {
		if err := one.client.Do(ctx, "GET", leases+"/"+one.lease.Name, nil, one.lease); err != nil {
			return err
		}
	}
	one.lease.Spec.RenewTime = now()
	err := one.client.Do(ctx, "PUT", leases+"/"+one.lease.Name, one.lease, one.lease)
	if one.stale = err != nil; !one.stale {
		one.renewed = time.Now()
	}
	return err
}

func now() *meta.MicroTime {
	t := meta.NowMicro()
	return &t
}

// heartbeatsAlone measures the heartbeats without claims.
func (b *bench) heartbeatsAlone(ctx context.Context, kube *server, hearts *heartbeats) (column, error) {
	c := column{name: "heartbeats alone"}
	m, err := kube.meter(ctx)
	if err != nil {
		return c, err
	}
	phase := hearts.begin()
	if err := pause(ctx, b.alone); err != nil {
		return c, err
	}
	c.all = b.alone
	c.beats = phase.end()
	c.usage, err = m.end(ctx)
	return c, err
}
