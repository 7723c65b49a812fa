package main

import (
	"context"
	"fmt"

	"github.com/imagepin/imagepin/integration/measure"
)

// churn is the leak check. It pulls and removes as many images as a busy node in hours.
func churn(z sizes) scenario {
	after := func(what string) string {
		return fmt.Sprintf("%s after %s pulls and removals", what, measure.Thousands(z.churn))
	}
	memory := row{name: after("memory (RSS)"), unit: bytes_, budget: ratio(1.1)}
	heap := row{name: after("live heap gained"), unit: bytes_, gain: true}
	routines := row{name: after("goroutines gained"), unit: count, gain: true, budget: atMost(10)}
	return scenario{
		rows:     []row{memory, heap, routines},
		restarts: true, most: 1,
		run: func(ctx context.Context, b *bench, s *side) (sample, error) {
			const images, atATime = 10, 4
			var refs []string
			for i := range images {
				ref, err := b.push(ctx, "churn", manyTree, i+1)
				if err != nil {
					return nil, err
				}
				refs = append(refs, ref)
			}
			round := func() error {
				if _, _, err := s.pullAll(ctx, refs, atATime); err != nil {
					return err
				}
				return concurrently(refs, atATime, func(ref string) error { return s.RemoveImage(ctx, ref, "") })
			}
			state := func() (heap, routines float64, err error) {
				if err := s.GC(ctx); err != nil {
					return 0, 0, err
				}
				// Idle connections to the registry are closed after a while. They are not a leak.
				if err := pause(ctx, z.idle); err != nil {
					return 0, 0, err
				}
				if routines, err = s.goroutines(ctx); err != nil {
					return 0, 0, err
				}
				heap, err = s.liveHeap(ctx)
				return heap, routines, err
			}
			// The first rounds fill caches and pools.
			for range 3 {
				if err := round(); err != nil {
					return nil, err
				}
			}
			heapBefore, routinesBefore, err := state()
			if err != nil {
				return nil, err
			}
			for done := 0; done < z.churn; done += images {
				if err := round(); err != nil {
					return nil, err
				}
				b.reg.Reset()
			}
			heapAfter, routinesAfter, err := state()
			if err != nil {
				return nil, err
			}
			total, _, err := measure.RSS(s.PID())
			return sample{memory.name: total, heap.name: heapAfter - heapBefore, routines.name: routinesAfter - routinesBefore}, err
		},
	}
}
