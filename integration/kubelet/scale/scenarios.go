package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// perPin is the number of agents that claim each ImagePin if there are many.
const perPin = 10

// scenarioTimeout ends a scenario that hangs. The agents have an error then.
const scenarioTimeout = 15 * time.Minute

// scenario is a number of claims: one of each agent.
type scenario struct {
	name string
	// pins is the number of new ImagePins.
	pins int
	// connecting means that each agent opens its connection when it claims, as after 90 seconds without a request.
	connecting bool
	// at returns which ImagePin an agent claims, and when.
	at func(i int) (pin int, after time.Duration)
}

func scenarios(z sizes) []scenario {
	pins := z.agents / perPin
	together := func(int) (int, time.Duration) { return 0, 0 }
	all := []scenario{
		{name: "at once", pins: 1, at: together},
		{name: "in " + text(z.spread), pins: 1, at: func(i int) (int, time.Duration) {
			return 0, z.spread * time.Duration(i) / time.Duration(z.agents)
		}},
		{name: fmt.Sprintf("%s pins in %s", measure.Thousands(pins), text(z.minute)), pins: pins, at: func(i int) (int, time.Duration) {
			pin := i * pins / z.agents
			return pin, z.minute * time.Duration(pin) / time.Duration(pins)
		}},
	}
	if z.connecting {
		all = append(all, scenario{name: "at once, connecting", pins: 1, connecting: true, at: together})
	}
	return all
}

// text formats a whole number of seconds.
func text(d time.Duration) string { return fmt.Sprintf("%.0f s", d.Seconds()) }

// claimed is what an agent got.
type claimed struct {
	node   string
	own    digest.Digest // what the registry says to this agent
	owner  string        // of its pod
	digest digest.Digest // what it got
	took   time.Duration // since the agent was to claim
	first  error         // of the first attempt; it tried again
	err    error         // it gave up
}

// column is a column of the table: what a scenario has measured.
type column struct {
	name   string
	agents int
	pins   int
	won    int // agents that have created an ImagePin
	failed int // agents whose first attempt failed
	took   []float64
	all    time.Duration // the duration: until all agents had their digest
	events int
	usage
	beats beats
}

// scenario runs a scenario. failed is a check that failed.
func (b *bench) scenario(ctx context.Context, kube *server, hearts *heartbeats, as *agents, number int, s scenario) (c column, failed, err error) {
	b.say("%s: creating pods", s.name)
	ctx, cancel := context.WithTimeoutCause(ctx, 2*scenarioTimeout, fmt.Errorf("not finished after %s", 2*scenarioTimeout))
	defer cancel()
	namespace := fmt.Sprintf("scale-%d", number)
	pods, err := createPods(ctx, kube, namespace, as.all, func(i int) int { pin, _ := s.at(i); return pin })
	if err != nil {
		return c, nil, err
	}
	if err := as.prepare(ctx, pods, s.connecting); err != nil {
		return c, nil, err
	}
	b.say("%s", s.name)
	as.reset()
	m, err := kube.meter(ctx)
	if err != nil {
		return c, nil, err
	}
	phase := hearts.begin()
	results, took := as.run(ctx, pods, s.at)
	c = column{name: s.name, agents: len(as.all), pins: s.pins, won: as.won(), all: took}
	var eventErr error
	c.events, eventErr = as.awaitEvents(ctx)
	c.beats = phase.end()
	if c.usage, err = m.end(ctx); err != nil {
		return c, nil, err
	}
	var list v1alpha1.ImagePinList
	if err := kube.Do(ctx, "GET", pinsPath(namespace), nil, &list); err != nil {
		return c, nil, err
	}
	var first error
	for _, r := range results {
		c.took = append(c.took, float64(r.took))
		if r.first != nil {
			c.failed++
			first = r.first
		}
	}
	b.say("%s: %s until all of %s agents had the digest, %d of them after an error", s.name, measure.Duration(took), measure.Thousands(c.agents), c.failed)
	if first != nil {
		b.say("%s: one of the errors: %v", s.name, first)
	}
	if c.beats.first != nil {
		b.say("%s: one of the errors of heartbeats: %v", s.name, c.beats.first)
	}
	failed = errors.Join(check(list.Items, results, s.pins, c.won), eventErr)
	// client-go ends a TLS handshake after 10 seconds, which is not long enough for those of all agents on this machine.
	if !s.connecting && first != nil {
		failed = errors.Join(failed, fmt.Errorf("the first attempts of %d agents failed: %w", c.failed, first))
	}
	return c, failed, nil
}

// prepare opens the connections of the agents, or closes them.
func (as *agents) prepare(ctx context.Context, pods []policy.Pod, connecting bool) error {
	if connecting {
		as.disconnect()
		return as.connect()
	}
	return parallel(ctx, len(as.all), func(ctx context.Context, i int) error { return as.all[i].open(ctx, pods[i]) })
}

// connect measures how all agents open their connections, several at one time.
func (b *bench) connect(ctx context.Context, kube *server, hearts *heartbeats, as *agents) (column, error) {
	c := column{name: "connecting"}
	pods, err := createPods(ctx, kube, "connecting", as.all, func(int) int { return 0 })
	if err != nil {
		return c, err
	}
	m, err := kube.meter(ctx)
	if err != nil {
		return c, err
	}
	phase := hearts.begin()
	start := time.Now()
	if err := as.prepare(ctx, pods, false); err != nil {
		return c, err
	}
	c.all = time.Since(start)
	c.beats = phase.end()
	c.usage, err = m.end(ctx)
	return c, err
}

// run makes all agents claim. took is the time until the last one got its digest.
func (as *agents) run(ctx context.Context, pods []policy.Pod, at func(int) (int, time.Duration)) (_ []claimed, took time.Duration) {
	ctx, cancel := context.WithTimeoutCause(ctx, scenarioTimeout, fmt.Errorf("not finished after %s", scenarioTimeout))
	defer cancel()
	results := make([]claimed, len(as.all))
	var ready, running sync.WaitGroup
	var start time.Time
	begin := make(chan struct{})
	for i, a := range as.all {
		ready.Add(1)
		running.Go(func() {
			ready.Done()
			<-begin
			pin, after := at(i)
			r := &results[i]
			*r = claimed{node: a.name, own: a.digest, owner: ownerName(pin)}
			if r.err = pause(ctx, time.Until(start.Add(after))); r.err == nil {
				r.digest, r.first, r.err = a.claim(ctx, pods[i], image)
			}
			r.took = time.Since(start.Add(after))
		})
	}
	ready.Wait()
	start = time.Now()
	close(begin)
	running.Wait()
	return results, time.Since(start)
}

// pause waits for a duration, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func pinsPath(namespace string) string {
	return "/apis/imagepin.io/v1alpha1/namespaces/" + namespace + "/imagepins"
}
