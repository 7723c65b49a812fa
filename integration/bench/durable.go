package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
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
	delayAgainst := row{name: wall.name + ": neighbour's fsync, beside sync = false", budget: ratio(1.2)}
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
		n, err := newNeighbour(ctx, filepath.Dir(s.Root()), d.dirty)
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
		rows: []row{wall, against, delay, delayAgainst}, fleet: fleet{unsynced: true}, most: repetitions,
		run: func(ctx context.Context, b *bench, s *side) (sample, error) {
			took, fsync, err := pull(ctx, b, s)
			if err != nil {
				return nil, err
			}
			got := sample{}
			got.took(wall.name, took)
			got.took(delay.name, fsync)
			if !s.ours {
				if took, fsync, err = pull(ctx, b, s.unsynced); err != nil {
					return nil, err
				}
			}
			got.took(against.name, took)
			got.took(delayAgainst.name, fsync)
			return got, nil
		},
	}
}
