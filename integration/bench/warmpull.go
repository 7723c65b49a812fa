package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/integration/registry"
)

// warmPulls are pulls of images that are ready, as kubelet calls them for imagePullPolicy: Always.
func warmPulls(z sizes) []scenario {
	return []scenario{
		warmPull(z, "warm pull, default", "warm/default", false, ratio(0.3), atMost(1)),
		warmPull(z, "warm pull, always", "always/warm", false, ratio(0.3), atMost(1)),
		warmPull(z, "warm pull, pinned", "pinned/warm", false, ratio(0.3), atMost(1)),
		warmPull(z, "warm pull, by digest", "warm/digest", true, ratio(0.05), atMost(0)),
	}
}

// warmTree is a typical image.
var warmTree = tree{layers: 5, files: 100, size: 1 << 20, seed: 4}

func warmPull(z sizes, name, repository string, byDigest bool, wallBudget, requestBudget budget) scenario {
	wall := row{name: name, budget: wallBudget}
	cpuTime := row{name: name + ": CPU"}
	requests := row{name: name + ": requests", unit: count, budget: requestBudget}
	writes := row{name: name + ": metadata transactions", unit: count, budget: atMost(0)}
	allocations := row{name: name + ": allocations", unit: count, budget: ratio(0.3)}
	var ref string
	return scenario{
		rows: []row{wall, cpuTime, requests, writes, allocations},
		setup: func(ctx context.Context, b *bench, p *pair) (err error) {
			if ref, err = b.push(ctx, repository, warmTree, 1); err != nil {
				return err
			}
			if byDigest {
				if ref, err = b.digested(ref); err != nil {
					return err
				}
			}
			for _, s := range p.sides() {
				if _, err := s.Pull(ctx, ref, ""); err != nil {
					return err
				}
			}
			return nil
		},
		run: func(ctx context.Context, b *bench, s *side) (sample, error) {
			var walls, transactions []float64
			b.reg.Reset()
			written, err := s.MetadataWrites()
			if err != nil {
				return nil, err
			}
			before, err := measure.CPU(s.PID())
			if err != nil {
				return nil, err
			}
			for range z.warm {
				start := time.Now()
				if _, err := s.Pull(ctx, ref, ""); err != nil {
					return nil, err
				}
				walls = append(walls, float64(time.Since(start)))
				last := written
				if written, err = s.MetadataWrites(); err != nil {
					return nil, err
				}
				transactions = append(transactions, float64(written-last))
			}
			after, err := measure.CPU(s.PID())
			if err != nil {
				return nil, err
			}
			requested := b.reg.Count(registry.In(repository))
			allocated, err := s.allocations(ctx, func() error {
				_, err := s.Pull(ctx, ref, "")
				return err
			})
			if err != nil {
				return nil, err
			}
			calls := float64(z.warm)
			return sample{
				// The median leaves out calls during which the daemon also does something else.
				writes.name: measure.Median(transactions), allocations.name: allocated,
				wall.name: measure.Median(walls), cpuTime.name: float64(after-before) / calls,
				requests.name: float64(requested) / calls,
			}, nil
		},
	}
}

// digested returns the reference by digest for a reference by tag.
func (b *bench) digested(ref string) (string, error) {
	name, ok := strings.CutPrefix(ref, b.reg.Ref(""))
	if !ok {
		return "", fmt.Errorf("%s is not a reference of the registry", ref)
	}
	repository, _, _ := strings.Cut(name, ":")
	return b.reg.Ref(repository + "@" + b.pushed[name].digest), nil
}
