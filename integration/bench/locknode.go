package main

import (
	"context"
	"fmt"
	"time"

	"github.com/imagepin/imagepin/integration/measure"
)

// lockedNodes are the scenarios of a node whose images are all locked.
func lockedNodes(z sizes) []scenario {
	f := fleet{images: z.locked}
	return []scenario{lockCalls(z, f), lockRestarts(z, f)}
}

// syntheticLock writes the lock of the synthetic images 0 to count-1.
func syntheticLock(path string, count int) error {
	var all []locked
	for i := range count {
		img, err := newSynthetic(i)
		if err != nil {
			return err
		}
		all = append(all, locked{img.ref, img.target.Digest})
	}
	return writeLock(path, all)
}

// lockCalls are what an operator does with the lock of a node that is ready.
func lockCalls(z sizes, f fleet) scenario {
	first := row{name: "apply of a lock, " + locks(z.locked/2) + " ready", own: true}
	again := row{name: "apply of a lock, " + locks(z.locked/2) + " ready, again", own: true, budget: only(z.locked/2, atMost(float64(time.Second)))}
	status := row{name: "lock status, " + locks(z.locked), own: true, budget: only(z.locked/2, atMost(float64(time.Second)))}
	return scenario{
		rows: []row{first, again, status}, fleet: f, restarts: true,
		run: func(ctx context.Context, _ *bench, s *side) (sample, error) {
			if !s.ours {
				return nil, nil
			}
			half, whole := s.Path("half.lock.yaml"), s.Path("whole.lock.yaml")
			if err := syntheticLock(half, z.locked/2); err != nil {
				return nil, err
			}
			if err := syntheticLock(whole, z.locked); err != nil {
				return nil, err
			}
			got := sample{}
			for _, step := range []struct {
				row  string
				args []string
			}{
				{first.name, []string{"apply", half, "--handler", "runc"}},
				{again.name, []string{"apply", half, "--handler", "runc"}},
				{"", []string{"apply", whole, "--handler", "runc"}},
				{status.name, []string{"lock", "status"}},
				{"", []string{"lock", "rm"}},
			} {
				p, err := s.imagepin(ctx, step.args...)
				if err != nil {
					return nil, err
				}
				if step.row != "" {
					got.took(step.row, p.wall)
				}
			}
			return got, nil
		},
	}
}

func locks(n int) string { return measure.Thousands(n) + " images" }

// lockRestarts are restarts of a node with a lock of all its images, and without a lock. Stock has no lock.
func lockRestarts(z sizes, f fleet) scenario {
	ready := row{name: at("restart until ready, no lock", z.locked), budget: ratio(1)}
	lockedReady := row{name: at("restart until ready, all locked", z.locked), budget: ratio(1)}
	index := row{name: at("reconcile at start, no lock", z.locked), own: true}
	lockedIndex := row{name: at("reconcile at start, all locked", z.locked), own: true}
	memory := row{name: "live heap: bytes of each locked image, " + locks(z.locked), unit: count, own: true}
	// restart restarts the daemon. It returns how long that took until it was ready, and its live heap.
	restart := func(ctx context.Context, s *side) (took time.Duration, heap float64, from int64, err error) {
		if err := s.Stop(); err != nil {
			return 0, 0, 0, err
		}
		from = s.LogOffset()
		start := time.Now()
		if err := s.Launch(ctx); err != nil {
			return 0, 0, 0, err
		}
		if err := s.awaitFirstList(ctx, z.locked); err != nil {
			return 0, 0, 0, err
		}
		if err := s.WaitReady(ctx); err != nil {
			return 0, 0, 0, err
		}
		took = time.Since(start)
		if err := pause(ctx, z.idle); err != nil {
			return 0, 0, 0, err
		}
		heap, err = s.liveHeap(ctx)
		return took, heap, from, err
	}
	return scenario{
		rows: []row{ready, lockedReady, index, lockedIndex, memory}, fleet: f, restarts: true,
		run: func(ctx context.Context, _ *bench, s *side) (sample, error) {
			if !s.ours {
				took, _, _, err := restart(ctx, s)
				return sample{ready.name: float64(took), lockedReady.name: float64(took)}, err
			}
			got := sample{}
			took, without, from, err := restart(ctx, s)
			if err != nil {
				return nil, err
			}
			got.took(ready.name, took)
			if took, err = reconciled(s.LogsSince(from)); err != nil {
				return nil, err
			}
			got.took(index.name, took)
			path := s.Path("whole.lock.yaml")
			if err := syntheticLock(path, z.locked); err != nil {
				return nil, err
			}
			if _, err := s.imagepin(ctx, "apply", path, "--handler", "runc"); err != nil {
				return nil, err
			}
			took, with, from, err := restart(ctx, s)
			if err != nil {
				return nil, err
			}
			got.took(lockedReady.name, took)
			if took, err = reconciled(s.LogsSince(from)); err != nil {
				return nil, err
			}
			got.took(lockedIndex.name, took)
			got[memory.name] = (with - without) / float64(z.locked)
			if got[memory.name] <= 0 {
				return nil, fmt.Errorf("the live heap is %.0f bytes with a lock and %.0f without", with, without)
			}
			_, err = s.imagepin(ctx, "lock", "rm")
			return got, err
		},
	}
}
