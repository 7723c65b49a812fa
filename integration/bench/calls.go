package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/integration/node"
)

// runtimeCalls are calls that imagepin forwards to upstream.
func runtimeCalls(z sizes) []scenario {
	return []scenario{
		forwarded(z, "Version", nil, func(ctx context.Context, s *side) error {
			_, err := s.Runtime().Version(ctx, &cri.VersionRequest{})
			return err
		}),
		pods(z),
		forwarded(z, fmt.Sprintf("ListContainers, %d containers", z.list), containers(z), func(ctx context.Context, s *side) error {
			res, err := s.Runtime().ListContainers(ctx, &cri.ListContainersRequest{})
			if err == nil && len(res.Containers) != z.list {
				err = fmt.Errorf("%d containers are listed, want %d", len(res.Containers), z.list)
			}
			return err
		}),
	}
}

// forwardedBudget is the additional time that a forwarded call may take.
const forwardedBudget = 150 * time.Microsecond

func forwarded(z sizes, name string, setup func(context.Context, *bench, *pair) error, call func(context.Context, *side) error) scenario {
	wall := row{name: name, budget: more(float64(forwardedBudget))}
	return scenario{
		rows:  []row{wall},
		setup: setup,
		run: func(ctx context.Context, _ *bench, s *side) (sample, error) {
			took, err := repeated(10*z.warm, func() error { return call(ctx, s) })
			return sample{wall.name: took}, err
		},
	}
}

// repeated makes calls one after the other, and returns the median of their durations.
func repeated(times int, call func() error) (float64, error) {
	walls := make([]float64, times)
	for i := range walls {
		start := time.Now()
		if err := call(); err != nil {
			return 0, err
		}
		walls[i] = float64(time.Since(start))
	}
	return measure.Median(walls), nil
}

// app pushes an image that can run, and returns its reference.
func (b *bench) app(ctx context.Context) (string, error) {
	const name = "app:v1"
	if _, ok := b.pushed[name]; ok {
		return b.reg.Ref(name), nil
	}
	img, err := images.AppIndex(ctx, images.Options{}, images.HostPlatform(), "linux/s390x")
	if err != nil {
		return "", err
	}
	root, err := b.reg.Push(name, img)
	b.pushed[name] = pushed{digest: root.String()}
	return b.reg.Ref(name), err
}

// start creates and starts a container.
func (s *side) start(ctx context.Context, pod *node.Pod, opts node.ContainerOptions) (*node.Container, error) {
	c, err := s.CreateContainer(ctx, pod, opts)
	if err != nil {
		return nil, err
	}
	_, err = s.Runtime().StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ID})
	return c, err
}

// containers creates the containers that are listed. They stay until their node is closed.
func containers(z sizes) func(context.Context, *bench, *pair) error {
	return func(ctx context.Context, b *bench, p *pair) error {
		ref, err := b.app(ctx)
		if err != nil {
			return err
		}
		for _, s := range p.sides() {
			id, err := s.Pull(ctx, ref, "")
			if err != nil {
				return err
			}
			pod, err := s.RunPod(ctx, node.PodOptions{})
			if err != nil {
				return err
			}
			for range z.list {
				if _, err := s.CreateContainer(ctx, pod, node.ContainerOptions{Image: id, UserImage: ref}); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// pods runs pods with one container, one after the other. A sample is the median of z.small pods: each call syncs to disk,
// so that the time of one varies.
func pods(z sizes) scenario {
	names := []string{"pod: all three calls", "pod: RunPodSandbox", "pod: CreateContainer", "pod: StartContainer"}
	return scenario{
		rows: []row{{name: names[0], budget: ratio(1.1)}, {name: names[1]}, {name: names[2], budget: ratio(1)}, {name: names[3]}},
		setup: func(ctx context.Context, b *bench, p *pair) error {
			ref, err := b.app(ctx)
			if err != nil {
				return err
			}
			for _, s := range p.sides() {
				if _, err := s.Pull(ctx, ref, ""); err != nil {
					return err
				}
				// The first pod pulls the sandbox image.
				if _, err := s.Run(ctx, "", node.ContainerOptions{Image: ref}); err != nil {
					return err
				}
			}
			return nil
		},
		run: func(ctx context.Context, b *bench, s *side) (sample, error) {
			ref, err := b.app(ctx)
			if err != nil {
				return nil, err
			}
			img, err := s.ImageStatus(ctx, ref, "")
			if err != nil {
				return nil, err
			}
			walls := make([][]float64, len(names))
			for range z.small {
				took, err := s.runPod(ctx, node.ContainerOptions{Image: img.Id, UserImage: ref})
				if err != nil {
					return nil, err
				}
				for i, d := range took {
					walls[i] = append(walls[i], float64(d))
				}
			}
			got := sample{}
			for i, name := range names {
				got[name] = measure.Median(walls[i])
			}
			return got, nil
		},
	}
}

// runPod runs a pod with one container, and removes it. It returns the duration of all three calls, and of each of them.
func (s *side) runPod(ctx context.Context, opts node.ContainerOptions) (_ []time.Duration, err error) {
	began := time.Now()
	pod, err := s.RunPod(ctx, node.PodOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.RemovePod(ctx, pod)) }()
	sandboxed := time.Now()
	c, err := s.CreateContainer(ctx, pod, opts)
	if err != nil {
		return nil, err
	}
	created := time.Now()
	if _, err := s.Runtime().StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ID}); err != nil {
		return nil, err
	}
	started := time.Now()
	return []time.Duration{started.Sub(began), sandboxed.Sub(began), created.Sub(sandboxed), started.Sub(created)}, nil
}
