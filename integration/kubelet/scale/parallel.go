package main

import (
	"context"
	"sync"
	"sync/atomic"
)

// workers is the number of requests that prepare a scenario at one time.
const workers = 32

// parallel calls do for 0 to n-1, with several calls at one time. It returns the first error. Then the context of the
// other calls ends.
func parallel(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var running sync.WaitGroup
	for range min(workers, n) {
		running.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}
