package main

import (
	"context"
	"slices"
	"syscall"
	"time"

	"github.com/imagepin/imagepin/integration/measure"
)

// serves are scenarios of imagepin serve in front of a stock containerd that has many images. The other side is stock
// containerd without it.
func serves(z sizes) []scenario {
	n := slices.Max(z.images)
	f := fleet{images: n, serve: true}
	return []scenario{serveStart(n, f), serveCalls(z, n, f), serveRestarts(z, n, f)}
}

// serveStart is the first start of imagepin serve in front of a containerd with images, and of that containerd.
func serveStart(n int, f fleet) scenario {
	first := row{name: at("serve: first start on stock's root", n), budget: ratio(1)}
	return scenario{
		rows: []row{first}, fleet: f, restarts: true, most: 1,
		run: func(_ context.Context, _ *bench, s *side) (sample, error) {
			return sample{first.name: float64(s.firstStart)}, nil
		},
	}
}

// serveCalls are the image calls that kubelet repeats, at the socket of imagepin serve.
func serveCalls(z sizes, n int, f fleet) scenario {
	status := row{name: at("serve: ImageStatus", n), budget: ratio(1)}
	list := row{name: at("serve: ListImages", n), budget: ratio(1)}
	read := row{name: at("serve: bytes read for each ListImages", n), unit: bytes_, own: true}
	calls := max(3, min(z.warm, 20_000/n))
	return scenario{
		rows: []row{status, list, read}, fleet: f,
		setup: func(ctx context.Context, _ *bench, p *pair) error {
			for _, s := range p.sides() { // after its first start, imagepin serve handles the events of what it has written
				if err := s.settle(ctx); err != nil {
					return err
				}
			}
			return nil
		},
		run: func(ctx context.Context, _ *bench, s *side) (_ sample, err error) {
			got := sample{}
			i := 0
			got[status.name], err = repeated(10*z.warm, func() error {
				i++
				return s.status(ctx, syntheticRef(i*7919%n))
			})
			if err != nil {
				return nil, err
			}
			before, err := measure.Read(s.PID())
			if err != nil {
				return nil, err
			}
			got[list.name], err = repeated(calls, func() error { return s.listAll(ctx, n) })
			if err != nil || !s.ours {
				return got, err
			}
			after, err := measure.Read(s.PID())
			got[read.name] = (after - before) / float64(calls)
			return got, err
		},
	}
}

// settle waits until the daemon is idle: until it uses less than 4% of a processor for half a second.
func (s *side) settle(ctx context.Context) error {
	const period, idle = 500 * time.Millisecond, 20 * time.Millisecond
	before, err := measure.CPU(s.PID())
	for err == nil {
		if err = pause(ctx, period); err != nil {
			return err
		}
		var now time.Duration
		if now, err = measure.CPU(s.PID()); now-before < idle {
			return err
		}
		before = now
	}
	return err
}

// serveRestarts are restarts of imagepin serve, while its containerd keeps running, beside restarts of stock
// containerd.
func serveRestarts(z sizes, n int, f fleet) scenario {
	listed := row{name: at("serve: restart until listed", n), budget: ratio(1)}
	ready := row{name: at("serve: restart until ready", n), budget: ratio(1)}
	used := row{name: at("serve: restart until ready: CPU", n), budget: ratio(1)}
	read := row{name: at("serve: bytes read until ready", n), unit: bytes_, own: true}
	memory := row{name: at("serve: memory (RSS)", n), unit: bytes_, own: true}
	heap := row{name: at("serve: live heap", n), unit: bytes_, own: true}
	routines := row{name: at("serve: goroutines", n), unit: count, own: true}
	return scenario{
		rows: []row{listed, ready, used, read, memory, heap, routines}, fleet: f, restarts: true, most: mostStarts(n),
		run: func(ctx context.Context, _ *bench, s *side) (sample, error) {
			stop := s.Stop
			if s.ours {
				stop = func() error { return s.EndServe(syscall.SIGTERM) }
			}
			if err := stop(); err != nil {
				return nil, err
			}
			start := time.Now()
			if err := s.Launch(ctx); err != nil {
				return nil, err
			}
			if err := s.awaitFirstList(ctx, n); err != nil {
				return nil, err
			}
			got := sample{listed.name: float64(time.Since(start))}
			if err := s.WaitReady(ctx); err != nil {
				return nil, err
			}
			got.took(ready.name, time.Since(start))
			processor, err := measure.CPU(s.PID())
			if err != nil {
				return nil, err
			}
			got.took(used.name, processor)
			if !s.ours {
				return got, nil
			}
			if got[read.name], err = measure.Read(s.PID()); err != nil {
				return nil, err
			}
			// The numbers that follow are for an idle process.
			if err := pause(ctx, z.idle); err != nil {
				return nil, err
			}
			if got[memory.name], _, err = measure.RSS(s.PID()); err != nil {
				return nil, err
			}
			if got[routines.name], err = s.goroutines(ctx); err != nil {
				return nil, err
			}
			got[heap.name], err = s.liveHeap(ctx)
			return got, err
		},
	}
}
