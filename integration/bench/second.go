package main

import (
	"context"
	"fmt"
	"time"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// seconds are pulls of images that are ready in one snapshotter, for a handler with another snapshotter.
func seconds() []scenario {
	return []scenario{
		secondPull("second snapshotter, layers kept", fleet{}, atMost(0)),
		secondPull("second snapshotter, layers kept, stock configured for it", fleet{both: true}, atMost(0)),
		secondPull("second snapshotter, layers discarded", fleet{discard: true}, budget{}),
	}
}

// secondTree is small, because the native snapshotter copies all files for each layer.
var secondTree = tree{layers: 4, files: 100, size: 2 << 20, seed: 5}

func secondPull(name string, f fleet, requestBudget budget) scenario {
	const repository = "second"
	wall := row{name: name}
	requests := row{name: name + ": content requests", unit: count, budget: requestBudget}
	return scenario{
		rows:       []row{wall, requests},
		fleet:      f,
		stockFails: true,
		run: func(ctx context.Context, b *bench, s *side) (sample, error) {
			ref, err := b.fresh(ctx, s, repository, secondTree)
			if err != nil {
				return nil, err
			}
			if _, err := s.Pull(ctx, ref, ""); err != nil {
				return nil, err
			}
			// Discarded layers are deleted by the next garbage collection.
			if err := s.GC(ctx); err != nil {
				return nil, err
			}
			b.reg.Reset()
			// As kubelet does, with the handler and a pod sandbox.
			pod := &node.Pod{Config: s.PodConfig(node.PodOptions{Annotations: map[string]string{"io.containerd.cri.runtime-handler": secondHandler}})}
			start := time.Now()
			_, err = s.PullWith(ctx, ref, node.PullOptions{Handler: secondHandler, Pod: pod})
			took := time.Since(start)
			requested := b.reg.Count(registry.In(repository), func(q registry.Request) bool { return q.Method != "HEAD" })
			if err == nil {
				err = s.inSecond(ctx, b.pushed[fmt.Sprintf("%s:v%d", repository, s.used[repository])].top)
			}
			return sample{wall.name: float64(took), requests.name: float64(requested)}, err
		},
	}
}

// inSecond checks that the image is unpacked in the second snapshotter.
func (s *side) inSecond(ctx context.Context, top string) error {
	if err := s.hasSnapshot(ctx, secondSnapshotter, top); err != nil {
		return fmt.Errorf("PullImage for handler %s succeeded, but the image is not in its snapshotter: %w", secondHandler, err)
	}
	return nil
}
