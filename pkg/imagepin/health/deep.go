package health

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// Deep is how a deep check is made. The zero value reads as fast as it can.
type Deep struct {
	// BytesPerSecond bounds how fast content is read; zero does not.
	BytesPerSecond int64
	// PinnedRef gives the reference of a pin of a digest, by which what it retains
	// can be fetched again; it may be nil.
	PinnedRef func(root digest.Digest) string
	// Progress is told how far the check is; it may be nil.
	Progress func(DeepProgress)
}

// DeepProgress is how far a deep check is.
type DeepProgress struct {
	Blobs, BlobsTotal         int
	Bytes, BytesTotal         int64
	Snapshots, SnapshotsTotal int
}

// DeepCheck is [Checker.Check] that also reads all content that keys and pins need, compares it
// with its digests, and looks whether the directories of snapshots are there. It
// changes nothing. What is damaged is looked at again at the end, so that what was
// replaced meanwhile is not reported. It ends when ctx does.
func (c *Checker) DeepCheck(ctx context.Context, d Deep) (Report, error) {
	have, err := c.Inventory(ctx)
	if err != nil {
		return Report{}, err
	}
	needed, err := c.needed(ctx, have)
	if err != nil {
		return Report{}, err
	}
	snapshots := c.Images.Snapshots()
	run := &deepRun{Deep: d, checker: c, pace: pace{rate: d.BytesPerSecond}}
	run.done.BlobsTotal, run.done.SnapshotsTotal = len(needed), len(snapshots)
	for _, b := range needed {
		run.done.BytesTotal += b.Size
	}
	damaged, err := run.read(ctx, needed)
	if err != nil {
		return Report{}, err
	}
	hollow, err := run.look(ctx, snapshots)
	if err != nil {
		return Report{}, err
	}
	if have, err = c.Inventory(ctx); err != nil {
		return Report{}, err
	}
	for _, b := range damaged {
		if damage, err := run.verify(ctx, b, nil); err != nil {
			return Report{}, err
		} else if damage != nil {
			have.Add(damage)
		}
	}
	for sn, why := range hollow {
		have.AddHollow(sn.Snapshotter, sn.ChainID, why)
	}
	report, err := c.checkAgainst(ctx, have)
	if err != nil {
		return report, err
	}
	checkRetained(have, needed, d.PinnedRef, &report)
	return report, nil
}

// deepRun is one deep check.
type deepRun struct {
	Deep
	checker *Checker
	pace    pace
	done    DeepProgress
}

func (r *deepRun) report() {
	if r.Progress != nil {
		r.Progress(r.done)
	}
}

// read reads blobs one after the other, and gives those that are damaged.
func (r *deepRun) read(ctx context.Context, needed []blob) ([]blob, error) {
	var damaged []blob
	for _, b := range needed {
		before := r.done.Bytes
		damage, err := r.verify(ctx, b, func(n int64) error {
			r.done.Bytes += n
			r.report()
			return r.pace.wait(ctx, n)
		})
		if err != nil {
			return nil, err
		}
		if damage != nil {
			damaged = append(damaged, b)
		}
		r.done.Blobs++
		r.done.Bytes = before + b.Size
		r.report()
	}
	return damaged, nil
}

// verify reads one blob. What cannot be told is logged: the check of its file says
// so where a key needs it.
func (r *deepRun) verify(ctx context.Context, b blob, read func(int64) error) (*blobs.Damage, error) {
	err := blobs.Verify(ctx, r.checker.Content, b.Digest, b.Size, read)
	damage := new(blobs.Damage)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &damage):
		if _, err := r.checker.Content.Info(ctx, b.Digest); errdefs.IsNotFound(err) {
			return nil, nil // it was removed meanwhile
		}
		return damage, nil
	case err != nil:
		log.G(ctx).WithError(err).Warn("cannot check content")
	}
	return nil, nil
}

// look looks at the directories of snapshots, and says which are gone.
func (r *deepRun) look(ctx context.Context, snapshots []store.Snapshot) (map[store.Snapshot]string, error) {
	hollow := make(map[store.Snapshot]string)
	err := lease.With(ctx, r.checker.Leases, lease.Use, func(ctx context.Context) error {
		for _, sn := range snapshots {
			if err := ctx.Err(); err != nil {
				return err
			}
			why, err := r.checker.Hollow(ctx, sn)
			if err != nil && ctx.Err() == nil {
				log.G(ctx).WithError(err).Warn("cannot check a snapshot")
			}
			if why != "" {
				hollow[sn] = why
			}
			r.done.Snapshots++
			r.report()
		}
		return nil
	})
	return hollow, err
}

// pace bounds how fast something is read.
type pace struct {
	rate int64 // bytes a second; zero does not bound it
	free time.Time
}

// wait waits until n more bytes may be read.
func (p *pace) wait(ctx context.Context, n int64) error {
	if p.rate <= 0 {
		return ctx.Err()
	}
	now := time.Now()
	if p.free.Before(now) {
		p.free = now
	}
	delay := p.free.Sub(now)
	p.free = p.free.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	if delay <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
