package bundle

import (
	"context"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

// Limits of prefetch, in bytes.
const (
	maxSmall       = 4 << 20
	prefetchBudget = 32 << 20
)

// prefetch fetches the next small blobs, several at a time, while a large one is read.
type prefetch struct {
	results map[*item]chan fetched
	budget  *semaphore.Weighted
}

type fetched struct {
	data []byte
	err  error
}

// startPrefetch starts to fetch the small blobs among segments in their order. A blob that the file has a part of is not among
// them.
func startPrefetch(ctx context.Context, group *errgroup.Group, source Source, segments []segment, at int64) *prefetch {
	p := &prefetch{results: make(map[*item]chan fetched), budget: semaphore.NewWeighted(prefetchBudget)}
	var small []segment
	for _, s := range segments {
		if s.blob != nil && s.size <= maxSmall && s.at >= at {
			small = append(small, s)
			p.results[s.blob] = make(chan fetched, 1)
		}
	}
	group.Go(func() error {
		slots := semaphore.NewWeighted(connections)
		for _, s := range small {
			if p.budget.Acquire(ctx, s.size) != nil || slots.Acquire(ctx, 1) != nil {
				return nil // another goroutine failed, or the caller canceled
			}
			group.Go(func() error {
				defer slots.Release(1)
				data, err := fetchAll(ctx, source, s.blob)
				p.results[s.blob] <- fetched{data, err}
				return nil
			})
		}
		return nil
	})
	return p
}

// take waits for a small blob. ok is false for other blobs.
func (p *prefetch) take(ctx context.Context, s segment) (_ []byte, ok bool, _ error) {
	result, ok := p.results[s.blob]
	if !ok {
		return nil, false, nil
	}
	select {
	case f := <-result:
		return f.data, true, f.err
	case <-ctx.Done():
		return nil, true, context.Cause(ctx)
	}
}

// release allows to fetch further blobs after a blob was used.
func (p *prefetch) release(s segment) { p.budget.Release(s.size) }
