package reconcile

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
)

// boots are the boots of a node.
type boots struct {
	settled bool
	err     error
}

func (b *boots) Settled() (bool, error) { return b.settled, b.err }

func (b *boots) Settle() error {
	b.settled = true
	return nil
}

func noOrphans(context.Context) error { return nil }

func mustRemove(ctx context.Context, t *testing.T, l *leftovers) (first bool) {
	t.Helper()
	first, err := l.remove(ctx)
	noError(t, err)
	return first
}

// TestFirstStartOfABoot checks that what a pull had unpacked is collected before the next pull if the power may have been cut,
// also if the lease of the pull is gone and if a collection fails. After a kill, only the lease is deleted.
func TestFirstStartOfABoot(t *testing.T) {
	for _, c := range []struct {
		name     string
		boots    *boots
		failures int // of the collection
		collects int
	}{
		{name: "same boot", boots: &boots{settled: true}},
		{name: "first start", boots: &boots{}, collects: 1},
		{name: "unreadable note", boots: &boots{err: errors.New("unreadable")}, collects: 1},
		{name: "collection fails", boots: &boots{}, failures: 3, collects: 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := ctdtest.New(t, "first")
			ctx := n.Context(t)
			blobs := ctdtest.Blobs{}
			img := blobs.Image("linux/amd64", "cut", nil)
			l, err := n.Leases.Create(ctx, leases.WithRandomID(), leases.WithLabel(imagepin.LeaseLabel, string(lease.Pull)))
			noError(t, err)
			n.Write(leases.WithLease(ctx, l.ID), t, blobs)
			n.Unpack(leases.WithLease(ctx, l.ID), t, img, "first")
			if c.boots.err == nil && !c.boots.settled {
				noError(t, n.Leases.Delete(ctx, l)) // a kill before the collection
			}
			collects, failure := 0, errors.New("a snapshotter hangs")
			removed := newLeftovers(&Config{Leases: n.Leases, Content: n.Content, Records: n.Images, Boots: c.boots, Collect: func(context.Context) error {
				if collects++; collects <= c.failures {
					return failure
				}
				n.Collect(t)
				return nil
			}})
			removed.retry = 0
			mustRemove(ctx, t, removed)
			if removed.isGone() != (c.collects == 0) {
				t.Errorf("pulls may begin before the collection: %t", removed.isGone())
			}
			removed.collect(ctx, noOrphans)
			if !removed.isGone() || collects != c.collects || !c.boots.settled {
				t.Errorf("pulls may begin: %t, %d collections, settled: %t", removed.isGone(), collects, c.boots.settled)
			}
			if n.HasSnapshot(t, "first", img.ChainID) {
				t.Error("what the pull had unpacked can be used again")
			}
			running, err := n.Leases.Create(ctx, leases.WithRandomID(), leases.WithLabel(imagepin.LeaseLabel, string(lease.Pull)))
			noError(t, err)
			if mustRemove(ctx, t, removed) {
				t.Error("a later run is the first one")
			}
			removed.collect(ctx, noOrphans)
			if collects != c.collects {
				t.Errorf("garbage is collected again: %d collections", collects)
			}
			if left, err := n.Leases.List(ctx); err != nil || len(left) != 1 || left[0].ID != running.ID {
				t.Errorf("leases %v, %v, want that of a running pull", left, err)
			}
		})
	}
}

// TestStoppedCollection checks that a process that ends during the collection leaves the rest to the next start, and that pulls
// do not begin.
func TestStoppedCollection(t *testing.T) {
	n, b := ctdtest.New(t), &boots{}
	ctx, stop := context.WithCancel(n.Context(t))
	removed := newLeftovers(&Config{Leases: n.Leases, Content: n.Content, Records: n.Images, Boots: b, Collect: func(ctx context.Context) error {
		stop()
		return ctx.Err()
	}})
	mustRemove(ctx, t, removed)
	removed.collect(ctx, noOrphans)
	r := &Reconciler{leftovers: removed}
	if err := r.AwaitClean(ctx); !errors.Is(err, context.Canceled) || b.settled {
		t.Errorf("waiting for the collection: %v, settled: %t", err, b.settled)
	}
}

// TestUnreleasedOrphans checks that pulls do not begin before the snapshots are released that no key needs.
func TestUnreleasedOrphans(t *testing.T) {
	n, b := ctdtest.New(t), &boots{}
	var steps []string
	removed := newLeftovers(&Config{Leases: n.Leases, Boots: b, Collect: func(context.Context) error {
		steps = append(steps, "collected")
		return nil
	}})
	removed.retry = 0
	mustRemove(n.Context(t), t, removed)
	removed.collect(n.Context(t), func(context.Context) error {
		if steps = append(steps, "released"); len(steps) == 1 {
			return errors.New("containerd is busy")
		}
		return nil
	})
	if got := strings.Join(steps, " "); got != "released released collected" || !b.settled {
		t.Errorf("got %s, settled: %t", got, b.settled)
	}
}

// TestViewsOfKilledCalls has a view of a check, and one of a sync, that were killed. After the start, the snapshot can be removed.
func TestViewsOfKilledCalls(t *testing.T) {
	d := newDeepNode(t)
	chain := d.images[0].ChainID.String()
	l, err := d.Leases.Create(d.ctx, leases.WithRandomID(), leases.WithLabel(imagepin.LeaseLabel, string(lease.Use)))
	noError(t, err)
	for _, prefix := range []string{"imagepin-check-", durable.ViewPrefix} {
		_, err = d.Snapshotter("first").View(leases.WithLease(d.ctx, l.ID), prefix+l.ID, chain)
		noError(t, err)
	}
	mustRemove(d.ctx, t, d.leftovers)
	d.Collect(t)
	noError(t, d.Snapshotter("first").Remove(d.ctx, chain))
}
