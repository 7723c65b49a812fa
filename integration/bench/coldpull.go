package main

import (
	"context"
	"syscall"
	"time"

	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/integration/registry"
)

// coldPulls are pulls of images of which the node has no part.
func coldPulls(z sizes) []scenario {
	small := tree{layers: 1, files: 80, size: 8 << 20, seed: 1}
	large := tree{layers: 8, files: z.layerN, size: z.layerSize, seed: 2}
	many := tree{layers: 40, files: 50, size: z.layerSize / 15, seed: 3}
	all := []scenario{
		coldPull("cold pull, small image", "small", small, fleet{}, z.small, ratio(1)),
		coldPull("cold pull, "+largeName(z), "large", large, fleet{}, 1, ratio(0.6)),
		coldPull("cold pull, 40 layers", "layers", many, fleet{}, 1, budget{}),
	}
	parallel := fleet{parallel: true}
	return append(all,
		coldPull("cold pull, small image, both parallel", "small", small, parallel, z.small, budget{}),
		coldPull("cold pull, "+largeName(z)+", both parallel", "large", large, parallel, 1, budget{}),
		coldPull("cold pull, 40 layers, both parallel", "layers", many, parallel, 1, budget{}),
	)
}

func largeName(z sizes) string {
	if z.layerSize == fullSizes.layerSize {
		return "240 MB in 8 layers"
	}
	return "8 small layers"
}

func coldPull(name, repository string, t tree, f fleet, times int, b budget) scenario {
	wall := row{name: name, budget: b}
	cpuTime := row{name: name + ": CPU"}
	requests := row{name: name + ": requests", unit: count, budget: ratio(1)}
	return scenario{
		rows:  []row{wall, cpuTime, requests},
		fleet: f,
		setup: func(ctx context.Context, b *bench, p *pair) error {
			// The first pull creates buckets of databases and the connection to the registry.
			for _, s := range p.sides() {
				ref, err := b.fresh(s, repository, t)
				if err != nil {
					return err
				}
				if _, err := s.Pull(ctx, ref, ""); err != nil {
					return err
				}
			}
			return nil
		},
		run: func(ctx context.Context, b *bench, s *side) (sample, error) {
			var (
				walls     []float64
				used      time.Duration
				requested int
			)
			for range times {
				ref, err := b.fresh(s, repository, t)
				if err != nil {
					return nil, err
				}
				b.reg.Reset()
				syscall.Sync()
				before, err := measure.CPU(s.PID())
				if err != nil {
					return nil, err
				}
				start := time.Now()
				if _, err := s.Pull(ctx, ref, ""); err != nil {
					return nil, err
				}
				walls = append(walls, float64(time.Since(start)))
				after, err := measure.CPU(s.PID())
				if err != nil {
					return nil, err
				}
				used += after - before
				requested = b.reg.Count(registry.In(repository))
			}
			return sample{wall.name: measure.Median(walls), cpuTime.name: float64(used) / float64(times), requests.name: float64(requested)}, nil
		},
	}
}
