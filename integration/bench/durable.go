package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// unsyncedSettings are those of a node that records images before they are on the disk, as stock does.
const unsyncedSettings = `
[plugins."io.containerd.imagepin.v1.images"]
  sync = false
`

// durablePull are cold pulls beside those of stock and of an imagepin with sync = false, whose images are not on the disk when they are
// recorded.
type durablePull struct {
	name string
	tree tree
	// slow is set if the registry sends [linkRate] to each side.
	slow bool
	// dirty is how many bytes a neighbour has written to the file system, and not synced, when the pull begins.
	dirty int64
	// most is the limit for the time in relation to sync = false.
	most float64
}

// linkRate is 100 Mbit/s, in bytes in a second.
const linkRate = 12_500_000

func durablePulls(z sizes) []scenario {
	t := tree{layers: 8, files: z.layerN / 8, size: z.layerSize, seed: 11}
	many := tree{layers: 8, files: z.layerN, size: z.layerSize, seed: 12}
	var all []scenario
	for _, d := range []durablePull{
		{name: "240 MB, 3,000 files, loopback", tree: t, most: 1.15},
		{name: "240 MB, 24,000 files, loopback", tree: many, most: 1.15},
		{name: "240 MB, 3,000 files, 100 Mbit/s", tree: t, slow: true, most: 1.05},
		{name: "240 MB, 3,000 files, 100 Mbit/s, neighbour with 1 GB", tree: t, slow: true, dirty: z.dirty, most: 1.5},
	} {
		all = append(all, d.scenario())
	}
	return all
}

func (d durablePull) scenario() scenario {
	const repository = "durable"
	wall := row{name: "durable pull, " + d.name}
	against := row{name: wall.name + ", beside sync = false", budget: ratio(d.most)}
	delay := row{name: wall.name + ": neighbour's fsync, 99th percentile", budget: ratio(1.2)}
	pull := func(ctx context.Context, b *bench, s *side) (took, fsync time.Duration, err error) {
		ref, err := b.fresh(ctx, s, repository+fmt.Sprint(d.tree.seed), d.tree)
		if err != nil {
			return 0, 0, err
		}
		if d.slow {
			if b.slow == "" {
				if b.slow, err = b.reg.LimitTotal(linkRate); err != nil {
					return 0, 0, err
				}
			}
			ref = b.slow + strings.TrimPrefix(ref, strings.TrimSuffix(b.reg.Ref(""), "/"))
		}
		syscall.Sync()
		n, err := newNeighbour(filepath.Dir(s.Root()), d.dirty)
		if err != nil {
			return 0, 0, err
		}
		start := time.Now()
		_, err = s.Pull(ctx, ref, "")
		took = time.Since(start)
		fsync, nerr := n.end()
		return took, fsync, errors.Join(err, nerr)
	}
	repetitions := 0
	if d.slow {
		repetitions = 3 // each takes seven seconds with each of three daemons
	}
	return scenario{
		rows: []row{wall, against, delay}, fleet: fleet{unsynced: true}, most: repetitions,
		run: func(ctx context.Context, b *bench, s *side) (sample, error) {
			took, fsync, err := pull(ctx, b, s)
			if err != nil {
				return nil, err
			}
			got := sample{}
			got.took(wall.name, took)
			got.took(delay.name, fsync)
			if s.ours {
				got.took(against.name, took)
				return got, nil
			}
			took, _, err = pull(ctx, b, s.unsynced)
			got.took(against.name, took)
			return got, err
		},
	}
}

// neighbour is a process beside the node that appends to a file and syncs it every ten milliseconds, as etcd does, and may have written
// much that is not synced.
type neighbour struct {
	dir   string
	stop  chan struct{}
	ended chan error
	took  []time.Duration
}

func newNeighbour(dir string, dirty int64) (*neighbour, error) {
	dir, err := os.MkdirTemp(dir, "imagepin-neighbour-")
	if err != nil {
		return nil, err
	}
	n := &neighbour{dir: dir, stop: make(chan struct{}), ended: make(chan error, 1)}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err == nil {
		err = writeDirty(filepath.Join(dir, "data"), dirty)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	go func() { n.ended <- errors.Join(n.run(log), log.Close()) }()
	return n, nil
}

func writeDirty(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for ; size > 0 && err == nil; size -= int64(len(block)) {
		_, err = f.Write(block)
	}
	return errors.Join(err, f.Close())
}

func (n *neighbour) run(log *os.File) error {
	record := make([]byte, 2<<10)
	for {
		start := time.Now()
		if _, err := log.Write(record); err != nil {
			return err
		}
		if err := syscall.Fdatasync(int(log.Fd())); err != nil {
			return err
		}
		n.took = append(n.took, time.Since(start))
		select {
		case <-n.stop:
			return nil
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// end returns the 99th percentile of the times of a sync.
func (n *neighbour) end() (time.Duration, error) {
	close(n.stop)
	err := errors.Join(<-n.ended, os.RemoveAll(n.dir))
	slices.Sort(n.took)
	return n.took[int(math.Ceil(0.99*float64(len(n.took))))-1], err
}
