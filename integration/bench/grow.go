package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"syscall"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/integration/offline"
)

// growth returns the scenarios of nodes with many images.
func growth(z sizes) []scenario {
	var all []scenario
	for _, n := range z.images {
		f := fleet{images: n}
		all = append(all, imageCalls(z, n, f), starts(z, n, f), repairs(n, n >= 1_000, f))
	}
	return all
}

// at returns the name of a row for a number of images.
func at(what string, n int) string { return what + ", " + measure.Thousands(n) + " images" }

// only returns the budget for 1,000 images, and none for other numbers.
func only(n int, b budget) budget {
	if n == 1_000 {
		return b
	}
	return budget{}
}

// imageCalls are the image calls that kubelet repeats.
func imageCalls(z sizes, n int, f fleet) scenario {
	status := row{name: at("ImageStatus", n), budget: ratio(1), curve: "ImageStatus", x: n}
	list, stream := listRows(n)
	return scenario{
		rows: []row{status, list, stream}, fleet: f,
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
			return got, s.lists(ctx, z, n, got)
		},
	}
}

// mostStarts returns the number of repetitions of starts, which differ little with many images and take long.
func mostStarts(images int) int {
	if images < 1_000 {
		return 0
	}
	return 3
}

// starts are the first start on a root of stock, whose images imagepin adopts, and restarts. For stock, both are the
// same.
func starts(z sizes, n int, f fleet) scenario {
	first := row{name: at("first start on stock's root", n), budget: ratio(1), curve: "first start on stock's root", x: n}
	listed := row{name: at("restart until listed", n), budget: ratio(1), curve: "restart until listed", x: n}
	ready := row{name: at("restart until ready", n), budget: ratio(1), curve: "restart until ready", x: n}
	used := row{name: at("restart until ready: CPU", n), budget: ratio(1), curve: "restart until ready, CPU", x: n}
	reconcile := row{name: at("reconcile at start", n), own: true, budget: only(n, atMost(float64(500*time.Millisecond))), curve: "reconcile at start", x: n}
	check := row{name: at("reconcile later (check)", n), own: true, budget: only(n, atMost(float64(100*time.Millisecond))), curve: "reconcile later", x: n}
	memory := row{name: at("memory (RSS)", n), unit: bytes_, budget: ratio(1), curve: "memory (RSS)", x: n}
	own := row{name: at("memory without the binary's pages", n), unit: bytes_}
	heap := row{name: at("live heap", n), unit: bytes_, budget: ratio(1), curve: "live heap", x: n}
	routines := row{name: at("goroutines", n), unit: count, budget: more(10), curve: "goroutines", x: n}
	return scenario{
		rows: []row{first, listed, ready, used, reconcile, check, memory, own, heap, routines}, fleet: f, restarts: true, most: mostStarts(n),
		run: func(ctx context.Context, _ *bench, s *side) (sample, error) {
			got := sample{}
			if s.ours {
				took, err := s.takeFirstStart(ctx, n)
				if err != nil {
					return nil, err
				}
				got.took(first.name, took)
			}
			if err := s.Stop(); err != nil {
				return nil, err
			}
			from := s.LogOffset()
			start := time.Now()
			if err := s.Launch(ctx); err != nil {
				return nil, err
			}
			if err := s.awaitFirstList(ctx, n); err != nil {
				return nil, err
			}
			got.took(listed.name, time.Since(start))
			if err := s.WaitReady(ctx); err != nil {
				return nil, err
			}
			got.took(ready.name, time.Since(start))
			if !s.ours {
				got[first.name] = got[ready.name]
			}
			processor, err := measure.CPU(s.PID())
			if err != nil {
				return nil, err
			}
			got.took(used.name, processor)
			if s.ours {
				took, err := reconciled(s.LogsSince(from))
				if err != nil {
					return nil, err
				}
				got.took(reconcile.name, took)
			}
			// The numbers that follow are for an idle daemon.
			if err := pause(ctx, z.idle); err != nil {
				return nil, err
			}
			if got[memory.name], got[own.name], err = measure.RSS(s.PID()); err != nil {
				return nil, err
			}
			if got[routines.name], err = s.goroutines(ctx); err != nil {
				return nil, err
			}
			if got[heap.name], err = s.liveHeap(ctx); err != nil || !s.ours {
				return got, err
			}
			start = time.Now()
			if _, err := s.control().Check(ctx, &api.CheckRequest{}); err != nil {
				return nil, err
			}
			got.took(check.name, time.Since(start))
			return got, nil
		},
	}
}

// takeFirstStart returns how long a first start took: the one that is not used as a sample yet, or a new one.
func (s *side) takeFirstStart(ctx context.Context, images int) (time.Duration, error) {
	if s.firstStart == 0 {
		if err := s.Stop(); err != nil {
			return 0, err
		}
		if err := s.forget(); err != nil {
			return 0, err
		}
		syscall.Sync()
		if err := s.begin(ctx, images); err != nil {
			return 0, err
		}
	}
	took := s.firstStart
	s.firstStart = 0
	return took, nil
}

// awaitImages waits until n images are listed with their tags. A damaged image is listed without.
func (s *side) awaitImages(ctx context.Context, n int) error {
	for {
		all, err := s.ListImages(ctx)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(i *runtime.Image) bool { return len(i.GetRepoTags()) == 0 }) // damaged
		if len(all) == n {
			return nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d images are listed: %w", len(all), n, err)
		}
	}
}

// awaitFirstList waits until a containerd that starts lists n images. It calls ListImages also before the socket
// exists.
func (s *side) awaitFirstList(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("timed out waiting until all images are listed"))
	defer cancel()
	for {
		s.Conn().ResetConnectBackoff() // otherwise gRPC waits for seconds
		all, err := s.ListImages(ctx)
		if err == nil && len(all) == n {
			return nil
		}
		if perr := pause(ctx, 5*time.Millisecond); perr != nil {
			return errors.Join(perr, err)
		}
	}
}

// pause waits for a duration, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var readyLine = regexp.MustCompile(`msg="imagepin is ready" took=(\S+)`)

// reconciled returns from the log how long the reconcile at the start took.
func reconciled(log string) (time.Duration, error) {
	m := readyLine.FindStringSubmatch(log)
	if m == nil {
		return 0, errors.New("the log has no line \"imagepin is ready\"")
	}
	return time.ParseDuration(m[1])
}

// repairs are restarts after the snapshots of some images were lost. single limits them to one.
func repairs(n int, single bool, f fleet) scenario {
	lost := max(1, n/100)
	name := fmt.Sprintf("restart until repaired, %s images, %d of them without snapshot", measure.Thousands(n), lost)
	repaired := row{name: name, curve: "restart until repaired", x: n}
	most := 0
	if single {
		most = 1
	}
	return scenario{
		rows: []row{repaired}, fleet: f, restarts: true, most: most, stockFails: true,
		run: func(ctx context.Context, _ *bench, s *side) (sample, error) {
			if err := s.Stop(); err != nil {
				return nil, err
			}
			r, err := offline.Open(ctx, s.Path("root"))
			if err != nil {
				return nil, err
			}
			if err := errors.Join(damage(ctx, r, lost), r.Close()); err != nil {
				return nil, err
			}
			start := time.Now()
			if err := s.Start(ctx); err != nil {
				return nil, err
			}
			if err := s.awaitImages(ctx, n); err != nil {
				return nil, err
			}
			took := time.Since(start)
			return sample{repaired.name: float64(took)}, s.unpacked(ctx, lost)
		},
	}
}

// unpacked checks that the images 0 to count-1 have their snapshots.
func (s *side) unpacked(ctx context.Context, count int) error {
	missing := 0
	for i := range count {
		img, err := newSynthetic(i)
		if err != nil {
			return err
		}
		if err := s.hasSnapshot(ctx, snapshotter, offline.ChainID(img.diffIDs)); err != nil {
			missing++
		}
	}
	if missing > 0 {
		return fmt.Errorf("all images are listed, but of %d the snapshot is gone", missing)
	}
	return nil
}
