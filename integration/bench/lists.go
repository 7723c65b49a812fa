package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/imagepin/imagepin/integration/measure"
)

// listsOfADay is how often kubelet 1.36 calls ListImages in a day: every 30 seconds for the image cache of its garbage
// collector, and every 5 minutes to find new images (realImageGCManager.Start in pkg/kubelet/images/image_gc_manager.go).
const listsOfADay = float64(24*time.Hour/(30*time.Second) + 24*time.Hour/(5*time.Minute))

// lists are lists on nodes with the number of images of a usual node, and what they need in a day.
func lists(z sizes) []scenario {
	var all []scenario
	for _, n := range z.lists {
		all = append(all, listCalls(z, n, fleet{images: n}))
	}
	for _, n := range z.listDays {
		all = append(all, listDay(z, n, fleet{images: n}))
	}
	return all
}

// listRows are the rows of ListImages and StreamImages.
func listRows(n int) (list, stream row) {
	list = row{name: at("ListImages", n), budget: listBudget(n), curve: "ListImages", x: n}
	stream = row{name: at("StreamImages", n), budget: listBudget(n), curve: "StreamImages", x: n}
	return list, stream
}

// listBudget returns the budget of a list of a number of images.
func listBudget(n int) budget {
	if n < 100 {
		return ratio(1)
	}
	return ratio(0.3)
}

func listCalls(z sizes, n int, f fleet) scenario {
	list, stream := listRows(n)
	return scenario{
		rows: []row{list, stream}, fleet: f,
		run: func(ctx context.Context, _ *bench, s *side) (sample, error) {
			got := sample{}
			return got, s.lists(ctx, z, n, got)
		},
	}
}

// lists adds how long ListImages and StreamImages take to a sample.
func (s *side) lists(ctx context.Context, z sizes, n int, got sample) (err error) {
	defer collectOften()()
	list, stream := listRows(n)
	calls := max(3, min(z.warm, 20_000/n))
	if got[list.name], err = repeated(calls, func() error { return s.listAll(ctx, n) }); err != nil {
		return err
	}
	got[stream.name], err = repeated(calls, func() error {
		all, err := s.stream(ctx)
		if err == nil && all != n {
			err = fmt.Errorf("%d images are streamed, want %d", all, n)
		}
		return err
	})
	return err
}

// collectOften makes this process collect garbage after each 64 MiB, as a client with a heap of that size does. It also has the blobs of
// the registry, so its heap would grow by their size between two collections, and each list would be decoded to memory that is not
// mapped yet. Call restore afterwards.
func collectOften() (restore func()) {
	const growth = 64 << 20
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	former := debug.SetGCPercent(max(1, int(min(100, 100*growth/now.HeapAlloc))))
	return func() { debug.SetGCPercent(former) }
}

// listAll calls ListImages, which must return n images.
func (s *side) listAll(ctx context.Context, n int) error {
	all, err := s.ListImages(ctx)
	if err == nil && len(all) != n {
		err = fmt.Errorf("%d images are listed, want %d", len(all), n)
	}
	return err
}

// listDay is the CPU time of the daemon for the ListImages calls of a day, from the time of one call.
func listDay(z sizes, n int, f fleet) scenario {
	used := row{name: at("CPU a day of lists", n), budget: ratio(1)}
	return scenario{
		rows: []row{used}, fleet: f,
		run: func(ctx context.Context, _ *bench, s *side) (sample, error) {
			calls := max(20, min(5*z.warm, 50_000/n)) // CPU time is counted in hundredths of a second
			before, err := measure.CPU(s.PID())
			if err != nil {
				return nil, err
			}
			for range calls {
				if err := s.listAll(ctx, n); err != nil {
					return nil, err
				}
			}
			after, err := measure.CPU(s.PID())
			return sample{used.name: float64(after-before) / float64(calls) * listsOfADay}, err
		},
	}
}
