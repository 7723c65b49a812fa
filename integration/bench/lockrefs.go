package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"

	"golang.org/x/time/rate"

	"github.com/imagepin/imagepin/integration/registry"
)

// The limits of a registry that refuses requests: as of public ones for users without an account, or lower.
const (
	requestsPerSecond  = 100
	requestsAtOnce     = 10
	requestsToTheLimit = 100 // burst
)

// lockRefs is a lock of many references of a registry that limits requests.
func lockRefs(z sizes) scenario {
	name := fmt.Sprintf("lock of %d references, at most %d requests a second", z.references, requestsPerSecond)
	wall := row{name: name, own: true}
	requests := row{name: name + ": requests for each", unit: count, own: true}
	refused := row{name: name + ": refused requests (429)", unit: count, own: true}
	return scenario{
		rows: []row{wall, requests, refused}, fleet: fleet{bundles: true}, restarts: true,
		run: func(ctx context.Context, b *bench, s *side) (sample, error) {
			if !s.ours {
				return nil, nil
			}
			var list bytes.Buffer
			for i := range z.references {
				ref, err := b.push(ctx, fmt.Sprintf("references/%d", i), smallReference, i+1)
				if err != nil {
					return nil, err
				}
				fmt.Fprintln(&list, ref)
			}
			file := s.Path("images.txt")
			if err := os.WriteFile(file, list.Bytes(), 0o644); err != nil {
				return nil, err
			}
			b.reg.Reset()
			b.reg.SetFault(limitRequests(b.reg))
			p, err := runProgram(ctx, "imagepin", "lock", "-f", file, "-o", s.Path("references.lock.yaml"))
			b.reg.SetFault(nil)
			if err != nil {
				return nil, err
			}
			no := b.reg.Count(func(r registry.Request) bool { return r.Status == http.StatusTooManyRequests })
			return sample{
				wall.name: float64(p.wall), refused.name: float64(no),
				requests.name: float64(b.reg.Count()-no) / float64(z.references),
			}, nil
		},
	}
}

// smallReference is the image of references of which only the digests matter.
var smallReference = tree{layers: 1, files: 1, size: 1 << 10, seed: 10}

// limitRequests refuses requests above the limits with a pause of a second.
func limitRequests(reg *registry.Registry) func(registry.Request) *registry.Fault {
	limiter := rate.NewLimiter(requestsPerSecond, requestsToTheLimit)
	var mu sync.Mutex
	return func(registry.Request) *registry.Fault {
		mu.Lock()
		defer mu.Unlock()
		running := reg.Count(func(r registry.Request) bool { return !r.Done }) // with this one
		if running <= requestsAtOnce && limiter.Allow() {
			return nil
		}
		return &registry.Fault{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}}
	}
}
