package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/integration/registry"
)

// manyPulls are concurrent pulls, and removals.
func manyPulls(z sizes) []scenario {
	return []scenario{equalPulls(z), differentPulls(z), removal(z), newTag(z)}
}

// manyTree is the image of these scenarios. It is small, because they measure the number of pulls.
var manyTree = tree{layers: 3, files: 50, size: 512 << 10, seed: 6}

func equalPulls(z sizes) scenario {
	const repository = "equal"
	name := fmt.Sprintf("%d pulls of one image", z.equal)
	wall := row{name: name, budget: ratio(1)}
	cpuTime := row{name: name + ": CPU"}
	resolves := row{name: name + ": HEADs", unit: count, budget: atMost(1)}
	fetches := row{name: name + ": GETs", unit: count, budget: ratio(1)}
	return scenario{
		rows: []row{wall, cpuTime, resolves, fetches},
		run: func(ctx context.Context, b *bench, s *side) (sample, error) {
			ref, err := b.fresh(ctx, s, repository, manyTree)
			if err != nil {
				return nil, err
			}
			refs := make([]string, z.equal)
			for i := range refs {
				refs[i] = ref
			}
			b.reg.Reset()
			awaiting, cancel := context.WithCancel(ctx)
			defer cancel()
			awaited := make(chan error, 1)
			if z.exact {
				// All calls run before the first one can end, also on a busy machine.
				release := b.hold(repository)
				go func() {
					defer release()
					awaited <- s.awaitPulls(awaiting, len(refs))
				}()
			} else {
				awaited <- nil
			}
			took, used, err := s.pullAll(ctx, refs, len(refs))
			cancel() // if a call has failed, there are never as many
			if err := errors.Join(err, <-awaited); err != nil {
				return nil, err
			}
			got := sample{
				wall.name: float64(took), cpuTime.name: float64(used),
				resolves.name: float64(b.reg.Count(registry.Is("HEAD", ""), registry.In(repository))),
				fetches.name:  float64(b.reg.Count(registry.Is("GET", ""), registry.In(repository))),
			}
			return got, nil
		},
	}
}

// hold holds back the answers to requests for a repository until the returned function is called.
func (b *bench) hold(repository string) (release func()) {
	held := make(chan struct{})
	b.reg.SetFault(registry.FaultIf(registry.Fault{Hang: held}, registry.In(repository)))
	return func() {
		b.reg.SetFault(nil)
		close(held)
	}
}

// awaitPulls waits until the daemon runs a number of calls of PullImage, by the stacks of its goroutines.
func (s *side) awaitPulls(ctx context.Context, want int) error {
	for {
		stacks, err := s.pprof(ctx, "goroutine?debug=2")
		if err != nil {
			return err
		}
		calls := 0
		for _, function := range []string{"._ImageService_PullImage_Handler(", ".(*imageCalls).pullImage("} { // stock's, and imagepin's
			calls += strings.Count(string(stacks), function)
		}
		if calls == want {
			return nil
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

func differentPulls(z sizes) scenario {
	name := fmt.Sprintf("%d images, 4 pulls at a time", z.different)
	wall := row{name: name, budget: ratio(1)}
	cpuTime := row{name: name + ": CPU"}
	return scenario{
		rows: []row{wall, cpuTime},
		run: func(ctx context.Context, b *bench, s *side) (sample, error) {
			var refs []string
			for i := range z.different {
				ref, err := b.fresh(ctx, s, fmt.Sprintf("different/%d", i), manyTree)
				if err != nil {
					return nil, err
				}
				refs = append(refs, ref)
			}
			took, used, err := s.pullAll(ctx, refs, 4)
			if err != nil {
				return nil, err
			}
			return sample{wall.name: float64(took), cpuTime.name: float64(used)}, nil
		},
	}
}

func removal(z sizes) scenario {
	wall := row{name: "RemoveImage", budget: ratio(1)}
	return scenario{
		rows: []row{wall},
		run: func(ctx context.Context, b *bench, s *side) (sample, error) {
			var walls []float64
			for range z.small {
				ref, err := b.fresh(ctx, s, "remove", manyTree)
				if err != nil {
					return nil, err
				}
				if _, err := s.Pull(ctx, ref, ""); err != nil {
					return nil, err
				}
				// Files that are not on the disk yet are deleted faster. Images that kubelet removes are old.
				syscall.Sync()
				start := time.Now()
				if err := s.RemoveImage(ctx, ref, ""); err != nil {
					return nil, err
				}
				walls = append(walls, float64(time.Since(start)))
			}
			return sample{wall.name: measure.Median(walls)}, nil
		},
	}
}

// newTag pulls another tag of a digest that has many tags on the node.
func newTag(z sizes) scenario {
	const repository = "tags"
	name := fmt.Sprintf("new tag on a digest with %d tags", z.tags)
	wall := row{name: name, budget: ratio(1)}
	cpuTime := row{name: name + ": CPU"}
	// pull pulls the next tag.
	pull := func(ctx context.Context, b *bench, s *side) (time.Duration, error) {
		s.used[repository]++
		tag := fmt.Sprintf("%s:tag%d", repository, s.used[repository])
		digest, err := v1.NewHash(b.pushed[repository+":v1"].digest)
		if err != nil {
			return 0, err
		}
		if err := b.reg.Tag(tag, digest); err != nil {
			return 0, err
		}
		start := time.Now()
		_, err = s.Pull(ctx, b.reg.Ref(tag), "")
		return time.Since(start), err
	}
	return scenario{
		rows: []row{wall, cpuTime},
		setup: func(ctx context.Context, b *bench, p *pair) error {
			if _, err := b.push(ctx, repository, manyTree, 1); err != nil {
				return err
			}
			for _, s := range p.sides() {
				for range z.tags {
					if _, err := pull(ctx, b, s); err != nil {
						return err
					}
				}
			}
			return nil
		},
		run: func(ctx context.Context, b *bench, s *side) (sample, error) {
			const times = 4 // the number of tags grows only a little
			var walls []float64
			before, err := measure.CPU(s.PID())
			if err != nil {
				return nil, err
			}
			for range times {
				took, err := pull(ctx, b, s)
				if err != nil {
					return nil, err
				}
				walls = append(walls, float64(took))
			}
			after, err := measure.CPU(s.PID())
			if err != nil {
				return nil, err
			}
			return sample{wall.name: measure.Median(walls), cpuTime.name: float64(after-before) / times}, nil
		},
	}
}

// pullAll pulls references, atATime of them concurrently. It returns how long all took and the CPU time used.
func (s *side) pullAll(ctx context.Context, refs []string, atATime int) (took, used time.Duration, err error) {
	before, err := measure.CPU(s.PID())
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	err = concurrently(refs, atATime, func(ref string) error {
		_, err := s.Pull(ctx, ref, "")
		return err
	})
	took = time.Since(start)
	after, cpuErr := measure.CPU(s.PID())
	return took, after - before, errors.Join(err, cpuErr)
}

// concurrently makes a call for each reference or path, atATime of them at a time.
func concurrently(refs []string, atATime int, call func(ref string) error) (err error) {
	var (
		callers sync.WaitGroup
		next    = make(chan string, len(refs))
		errs    = make(chan error, len(refs))
	)
	for _, ref := range refs {
		next <- ref
	}
	close(next)
	for range atATime {
		callers.Go(func() {
			for ref := range next {
				errs <- call(ref)
			}
		})
	}
	callers.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	return err
}
