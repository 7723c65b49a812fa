package main

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"syscall"
	"time"

	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// coldPrefix is the prefix of the names of rows of cold pulls.
const coldPrefix = "cold pull, "

// coldPull is a scenario of pulls of images of which the node has no part.
type coldPull struct {
	name       string
	repository string
	tree       tree
	fleet      fleet
	budget     budget
	running    budget // of the time until a pod runs; none means that of stock
	most       int    // repetitions at most; 0 means as many as are wanted
	times      int    // pulls in each sample, which is their median
	// stopped is set if no container starts of an image that can run.
	stopped bool
	// limited is set if the registry limits each connection.
	limited bool
	// cores records how busy each processor is.
	cores bool
	// remove deletes the image after each turn. Deleting a few files does not slow down later pulls.
	remove bool
}

// connectionLimit is what a limited registry sends over each connection, in bytes in a second.
const connectionLimit = 60 << 20

// smallTree is a small image.
var smallTree = tree{layers: 1, files: 80, size: 8 << 20, seed: 1}

// coldPulls are pulls of images of which the node has no part.
func coldPulls(z sizes) []scenario {
	large := tree{layers: 8, files: z.layerN, size: z.layerSize, seed: 2, runs: true}
	many := tree{layers: 40, files: 50, size: z.layerSize / 15, seed: 3}
	huge := tree{layers: 1, files: 4, size: 16 * z.piece, seed: 7, piece: z.piece, runs: true}
	plain := tree{layers: 1, files: 16, size: 80 * z.text, seed: 13, piece: z.text, content: textFiles}
	noise := tree{layers: 6, files: z.layerN / 10, size: z.random, seed: 14, content: randomFiles}
	zstd := large
	zstd.zstd, zstd.seed = true, 8 // with the same content, the node would have the snapshots of the other image
	parallel := fleet{parallel: true}
	largeImage, hugeImage := named(z, "240 MB in 8 layers", "8 small layers"), named(z, "one layer of 1 GB", "one small layer of large files")
	textImage := named(z, "400 MiB of text in one layer", "one small layer of text")
	randomImage := named(z, "96 MB in 6 layers that do not compress", "6 small layers that do not compress")
	var all []scenario
	for _, c := range []coldPull{
		{name: "small image", repository: "small", tree: smallTree, times: z.small, budget: ratio(1)},
		{name: largeImage, repository: "large", tree: large, budget: ratio(0.45), cores: true},
		{name: "40 layers", repository: "layers", tree: many},
		{name: hugeImage, repository: "huge", tree: huge, budget: ratio(0.6), remove: true},
		{name: hugeImage + ", 60 MiB/s", repository: "huge", tree: huge, budget: ratio(0.48), limited: true, remove: true, most: 3},
		{name: largeImage + ", both parallel", repository: "large", tree: large, fleet: parallel, budget: ratio(0.8)},
		{name: "40 layers, both parallel", repository: "layers", tree: many, fleet: parallel},
		{name: largeImage + ", zstd", repository: "zstd", tree: zstd, budget: ratio(1)},
		{name: textImage, repository: "text", tree: plain, budget: ratio(1), remove: true},
		{name: randomImage, repository: "random", tree: noise, budget: ratio(1)},
		{name: largeImage + ", EROFS", repository: "large", tree: large, fleet: fleet{erofs: true}},
		// containerd 2.4 starts no container of it: its reader of EROFS for users and groups has no archive ("extra devices count").
		{name: largeImage + ", EROFS tar index", repository: "large", tree: large, fleet: fleet{erofs: true, tarIndex: true}, budget: ratio(1), stopped: true, most: 3},
		{name: largeImage + ", stock's defaults beside EROFS", repository: "large", tree: large, fleet: fleet{fastest: true}, budget: ratio(1), running: ratio(0.35), most: 3, cores: true},
	} {
		all = append(all, c.scenario())
	}
	return all
}

// named returns the name of an image, which is smaller with -quick.
func named(z sizes, full, quick string) string {
	if z.exact {
		return quick
	}
	return full
}

func (c coldPull) scenario() scenario {
	name := coldPrefix + c.name
	wall := row{name: name, budget: c.budget}
	cpuTime := row{name: name + ": CPU"}
	requests := row{name: name + ": requests", unit: count, budget: ratio(1)}
	if c.limited {
		requests.budget = budget{} // several connections, each with requests for parts of the layer
	}
	writes := row{name: name + ": metadata transactions", unit: count, budget: ratio(1)}
	running := row{name: "pull, then pod running, " + c.name, budget: cmp.Or(c.running, ratio(1))}
	rows := []row{wall, cpuTime, requests, writes}
	if c.runs() {
		rows = append(rows, running)
	}
	var sh *shares
	if c.times == 0 { // a large image
		sh = &shares{name: name, imageTimes: c.imageTimes}
	}
	return scenario{
		rows: rows, fleet: c.fleet, setup: c.setup, shares: sh, most: c.most,
		run: func(ctx context.Context, b *bench, s *side) (_ sample, err error) {
			var pod *node.Pod
			if c.runs() {
				// As kubelet does, which pulls images after it has started the pod sandbox.
				if pod, err = s.RunPod(ctx, node.PodOptions{}); err != nil {
					return nil, err
				}
				defer func() { err = errors.Join(err, s.RemovePod(ctx, pod)) }()
			}
			var walls, whole []float64
			got := sample{}
			times := max(1, c.times)
			for range times {
				p, err := c.pull(ctx, b, s, pod)
				if err != nil {
					return nil, err
				}
				if sh != nil {
					sh.last = p.turn
				}
				walls, whole = append(walls, float64(p.Wall)), append(whole, float64(p.running))
				got[cpuTime.name] += float64(p.User+p.Kernel) / float64(times)
				got[writes.name] += float64(p.writes) / float64(times)
				got[requests.name] = float64(p.requests)
			}
			got[wall.name] = measure.Median(walls)
			if pod != nil {
				got[running.name] = measure.Median(whole)
			}
			return got, nil
		},
	}
}

// runs reports whether a container of the image starts after the pull.
func (c coldPull) runs() bool { return c.tree.runs && !c.stopped }

// pulled are the numbers of one pull.
type pulled struct {
	turn
	running  time.Duration // until a container of the image has started; 0 if there is no pod
	writes   uint64        // transactions of containerd's metadata database
	requests int
}

// pull pulls the image once, and starts a container of it in the pod, if there is one.
func (c coldPull) pull(ctx context.Context, b *bench, s *side, pod *node.Pod) (pulled, error) {
	var got pulled
	ref, err := c.fresh(ctx, b, s)
	if err != nil {
		return got, err
	}
	b.reg.Reset()
	syscall.Sync()
	writes, err := s.MetadataWrites()
	if err != nil {
		return got, err
	}
	before, err := s.counters()
	if err != nil {
		return got, err
	}
	stop := func() ([]string, error) { return nil, nil }
	if c.cores {
		stop = watchCores()
	}
	start := time.Now()
	id, err := s.Pull(ctx, ref, "")
	wall := time.Since(start)
	cores, cerr := stop()
	if err := errors.Join(err, cerr); err != nil {
		return got, err
	}
	after, err := s.counters()
	if err != nil {
		return got, err
	}
	got.turn = after.since(before, wall)
	got.Cores = strings.Join(cores, " ")
	if got.writes, err = s.MetadataWrites(); err != nil {
		return got, err
	}
	got.writes, got.requests = got.writes-writes, b.reg.Count(registry.In(c.repository))
	if pod != nil {
		container, err := s.start(ctx, pod, node.ContainerOptions{Image: id, UserImage: ref})
		if err != nil {
			return got, err
		}
		got.running = time.Since(start)
		if err := container.Remove(ctx); err != nil {
			return got, err
		}
	}
	if c.remove {
		err = s.removeNow(ctx, ref)
	}
	return got, err
}

// setup pulls the sandbox image and a small one, which creates buckets of databases and the connection to the registry.
func (c coldPull) setup(ctx context.Context, b *bench, p *pair) error {
	first := c
	first.repository, first.tree = "small", smallTree
	for _, s := range p.sides() {
		if _, err := s.Pull(ctx, b.reg.Ref(pauseTag), ""); err != nil {
			return err
		}
		ref, err := first.fresh(ctx, b, s)
		if err != nil {
			return err
		}
		if _, err := s.Pull(ctx, ref, ""); err != nil {
			return err
		}
	}
	return nil
}

// fresh returns a reference of which the side has no part.
func (c coldPull) fresh(ctx context.Context, b *bench, s *side) (string, error) {
	ref, err := b.fresh(ctx, s, c.repository, c.tree)
	if err != nil || !c.limited {
		return ref, err
	}
	if b.limited == "" {
		if b.limited, err = b.reg.Limit(connectionLimit); err != nil {
			return "", err
		}
	}
	return b.from(b.limited, ref)
}

// removeNow removes an image and its content.
func (s *side) removeNow(ctx context.Context, ref string) error {
	if err := s.RemoveImage(ctx, ref, ""); err != nil {
		return err
	}
	return s.GC(ctx)
}
