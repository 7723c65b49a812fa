package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/integration/registry"
)

// rush is one of the worst moments of a node: many pods start at once. It ends when the last one runs.
type rush struct {
	name         string
	pods, images int // pod i has image i modulo images
	tree         tree
	// boot restarts the daemon first. All images are on the node, and every second pod has the policy Always. Otherwise no
	// image is on the node, and all pods have IfNotPresent.
	boot bool
	// drips is the number of layers of an image of which another host sends a byte now and then. Pulls are not serialized
	// then: with serializeImagePulls, kubelet itself would wait for that image.
	drips int
	// stuck is how long the pods of stock may take. 0 means that there is no limit, and that stock does not fail.
	stuck time.Duration
}

// rushRepository is the parent of the repositories of these images.
const rushRepository = "rush/"

// most returns the number of repetitions at most. A turn takes seconds, and removing its pods too.
func (r rush) most() int {
	if r.stuck > 0 {
		return 1
	}
	return 3
}

// rushes are the worst moments of a node. The node is empty before the first one.
func rushes(z sizes) []scenario {
	service := tree{layers: 4, files: z.layerN / 15, size: z.service, seed: 15, runs: true}
	small := tree{layers: 3, files: z.layerN / 30, size: z.service / 8, seed: 16, runs: true}
	name := func(what string, pods, images int) string {
		return fmt.Sprintf("%s, %d pods of %d images", what, pods, images)
	}
	var all []scenario
	for _, r := range []rush{
		{name: name("drain", z.drained, z.drained), pods: z.drained, images: z.drained, tree: service},
		{name: name("scale-up", z.pods, z.podImages), pods: z.pods, images: z.podImages, tree: service},
		{name: name("scale-up", z.pods, z.podImages) + ", a registry drips one layer", pods: z.pods, images: z.podImages, tree: service, drips: 1},
		{name: name("scale-up", z.pods, z.podImages) + ", a registry drips eight layers", pods: z.pods, images: z.podImages, tree: service, drips: 8, stuck: z.stuck},
		{name: name("boot", z.booted, z.bootImages), pods: z.booted, images: z.bootImages, tree: small, boot: true},
	} {
		all = append(all, r.scenario())
	}
	return all
}

func (r rush) scenario() scenario {
	wall := row{name: r.name, budget: ratio(1)}
	used := row{name: r.name + ": CPU", budget: ratio(1)}
	peak := row{name: r.name + ": peak memory (RSS)", unit: bytes_, budget: ratio(1)}
	requests := row{name: r.name + ": requests for blobs", unit: count, budget: ratio(1)}
	if r.boot {
		requests.name = r.name + ": requests"
	}
	var over *course
	if r.drips == 0 {
		over = &course{name: r.name}
	}
	return scenario{
		rows: []row{wall, used, peak, requests}, fleet: fleet{rushes: true}, restarts: r.boot, most: r.most(), setup: r.setup, course: over,
		stockFails: r.stuck > 0,
		run: func(ctx context.Context, b *bench, s *side) (_ sample, err error) {
			pods, err := r.specs(ctx, b, s)
			if err != nil {
				return nil, err
			}
			k := newKubelet(s, r.drips > 0)
			defer func() { err = errors.Join(err, k.removePods(ctx)) }()
			if r.drips > 0 {
				end, derr := b.drip(ctx, s, r.drips)
				if derr != nil {
					return nil, derr
				}
				defer func() { err = errors.Join(err, end()) }()
			}
			b.reg.Reset()
			m, err := r.limited(ctx, k, pods)
			if err != nil {
				return nil, err
			}
			if over != nil {
				over.last = m.moments
			}
			got := sample{used.name: float64(m.used), peak.name: m.peak}
			got.took(wall.name, m.wall)
			if r.boot {
				got[requests.name] = float64(b.reg.Count(inRush))
			} else {
				got[requests.name] = float64(b.reg.Count(inRush, registry.Is("GET", registry.Blob)))
			}
			return got, nil
		},
	}
}

func inRush(q registry.Request) bool { return strings.HasPrefix(q.Repository, rushRepository) }

// rushed is what the daemon has used until the last pod runs.
type rushed struct {
	wall, used time.Duration
	peak       float64 // bytes
	moments    []moment
}

// limited is measure with the limit for stock.
func (r rush) limited(ctx context.Context, k *kubelet, pods []podSpec) (rushed, error) {
	if r.stuck == 0 || k.ours {
		return r.measure(ctx, k, pods)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.stuck, fmt.Errorf("not all pods run after %s", r.stuck))
	defer cancel()
	got, err := r.measure(ctx, k, pods)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // instead of the error of each pod
	}
	return got, err
}

// measure starts the pods, and the daemon before them in a boot.
func (r rush) measure(ctx context.Context, k *kubelet, pods []podSpec) (got rushed, err error) {
	var before time.Duration
	if r.boot {
		err = k.Stop()
	} else if err = measure.ResetPeakRSS(k.PID()); err == nil {
		before, err = measure.CPU(k.PID())
	}
	if err != nil {
		return got, err
	}
	start := time.Now()
	if r.boot {
		if err := k.Launch(ctx); err != nil {
			return got, err
		}
	}
	stop := watchDaemon(k.PID(), start)
	if r.boot {
		err = k.boot(ctx)
	}
	if err == nil {
		err = k.run(ctx, pods)
	}
	got.wall = time.Since(start)
	var werr error
	got.moments, werr = stop()
	if err := errors.Join(err, werr); err != nil {
		return got, err
	}
	after, err := measure.CPU(k.PID())
	if err != nil {
		return got, err
	}
	got.used = after - before
	got.peak, err = measure.PeakRSS(k.PID())
	return got, err
}

// boot waits until the daemon is ready, and makes the calls of kubelet's start.
func (k *kubelet) boot(ctx context.Context) error {
	if err := k.WaitReady(ctx); err != nil {
		return err
	}
	return k.begin(ctx)
}

// setup pulls the sandbox image, and for a boot the images of its pods.
func (r rush) setup(ctx context.Context, b *bench, p *pair) error {
	refs := []string{b.reg.Ref(pauseTag)}
	if r.boot {
		for i := range r.images {
			ref, err := b.push(ctx, fmt.Sprintf("%sboot%d", rushRepository, i), r.tree, i+1)
			if err != nil {
				return err
			}
			refs = append(refs, ref)
		}
	}
	const atATime = 4
	for _, s := range p.sides() {
		if err := concurrently(refs, atATime, func(ref string) error {
			_, err := s.Pull(ctx, ref, "")
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// specs returns the pods. Images that are not on the node are variants that the side has not pulled yet.
func (r rush) specs(ctx context.Context, b *bench, s *side) ([]podSpec, error) {
	refs := make([]string, r.images)
	for i := range refs {
		repository, variant := fmt.Sprintf("%sboot%d", rushRepository, i), i+1
		if !r.boot {
			s.used[rushRepository]++
			repository, variant = fmt.Sprintf("%sapp%d", rushRepository, i), s.used[rushRepository]
		}
		var err error
		if refs[i], err = b.push(ctx, repository, r.tree, variant); err != nil {
			return nil, err
		}
	}
	pods := make([]podSpec, r.pods)
	for i := range pods {
		pods[i] = podSpec{image: refs[i%r.images], always: r.boot && i%2 == 1}
	}
	return pods, nil
}
