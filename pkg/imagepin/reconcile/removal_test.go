package reconcile

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
)

// TestViewDuringRemoval checks that the view of another check does not keep a damaged snapshot.
func TestViewDuringRemoval(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	d.truncate(t, d.images[0].ChainID, "etc/a")
	f := d.deep(t)[tagA]
	viewed := false
	sn := ctdtest.Snapshots{Snapshotter: d.Snapshotter("first"), Before: ctdtest.On("Remove", func(name string) error {
		if name != d.images[0].ChainID.String() || viewed {
			return nil
		}
		viewed = true
		_, err := d.Snapshotter("first").View(d.ctx, "imagepin-check-other", name)
		return err
	})}
	d.config.Checker = health.New(health.Config{
		Images: d.store, Content: d.Content, Leases: d.Leases, Runtimes: d.config.Runtimes, Snapshotter: func(string) snapshots.Snapshotter { return sn },
	})
	if found := d.deep(t); len(found) != 1 {
		t.Fatalf("got findings %+v, want one", found)
	}
	if done, err := d.Repair(d.ctx, f); done != Unpacked || err != nil || !viewed {
		t.Errorf("repair: got %q, %v, want %q", done, err, Unpacked)
	}
	d.wantIntact(t)
}

// TestRecordOfCollectedView checks that a view that containerd has collected, and whose record it keeps in the snapshot below, does not
// keep a damaged snapshot.
func TestRecordOfCollectedView(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	d.truncate(t, d.images[0].ChainID, "etc/a")
	f := d.deep(t)[tagA]
	_, err := d.Snapshotter("first").View(d.ctx, "imagepin-check-collected", d.images[0].ChainID.String())
	noError(t, err)
	d.Collect(t)
	if err := d.Snapshotter("first").Remove(d.ctx, d.images[0].ChainID.String()); !errdefs.IsFailedPrecondition(err) || d.HasSnapshot(t, "first", "imagepin-check-collected") {
		t.Fatalf("removing the snapshot below a collected view: got %v, want a FailedPrecondition error", err)
	}
	if done, err := d.Repair(d.ctx, f); done != Unpacked || err != nil {
		t.Errorf("repair: got %q, %v, want %q", done, err, Unpacked)
	}
	d.wantIntact(t)
}

// watched calls before when an image is to be unpacked.
type watched struct {
	Maker
	before func()
}

func (w watched) Unpack(ctx context.Context, e imagepin.Entry, record func(context.Context, imagepin.Entry) error) error {
	w.before()
	return w.Maker.Unpack(ctx, e, record)
}

// TestRemovedIsNotDurable checks that no key of a removed snapshot has a mark of durability when a repair unpacks it again, as what is
// unpacked may be lost when the power is cut, and that all these keys are queued for repair.
func TestRemovedIsNotDurable(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	d.reboot(t, &fakeBoot{id: "second", began: time.Now().Add(time.Hour)})
	d.unmarked.run(d.ctx)
	if got := d.durable(t); !slices.Equal(got, []string{tagA, tagB}) {
		t.Fatalf("%q are durable, want both", got)
	}
	noError(t, os.RemoveAll(d.directory(t, d.base)))
	f := d.deep(t)[tagA]
	var queued []string
	d.repairs.again = func(l health.Loss) { queued = append(queued, l.Entry.Ref) }
	unpacks := 0
	d.config.Maker = watched{d.config.Maker, func() {
		unpacks++
		if got := d.durable(t); len(got) > 0 {
			t.Errorf("%q are durable, want none", got)
		}
	}}
	if done, err := d.Repair(d.ctx, f); done != Unpacked || err != nil || unpacks != 1 || !f.Loss.MissingDirectory {
		t.Errorf("repair of %q: got %q, %v, want %q", f.Problem, done, err, Unpacked)
	}
	if slices.Sort(queued); !slices.Equal(queued, []string{tagA, tagB}) {
		t.Errorf("%q are queued for repair, want both", queued)
	}
}

// durable returns the references of the keys whose labels have a mark of durability.
func (d *filesNode) durable(t *testing.T) (refs []string) {
	t.Helper()
	all, err := d.Images.List(d.ctx)
	noError(t, err)
	for _, img := range all {
		for name, value := range img.Labels {
			if e, err := imagepin.DecodeKeyLabel(name, value); err == nil && e.Durable != "" {
				refs = append(refs, e.Ref)
			}
		}
	}
	slices.Sort(refs)
	return refs
}

var errRemove = errors.New("killed")

// TestInterruptedRemoval ends the removal of damaged snapshots before that of the damaged one. The next start unpacks nothing on it.
func TestInterruptedRemoval(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	d.truncate(t, d.base, "bin/base")
	f := d.deep(t)[tagA]
	sn := d.Snapshotter("first")
	broken := health.New(health.Config{
		Images: d.store, Content: d.Content, Leases: d.Leases, Runtimes: d.config.Runtimes,
		Snapshotter: func(string) snapshots.Snapshotter {
			return ctdtest.Snapshots{Snapshotter: sn, Before: ctdtest.On("Remove", func(name string) error {
				if name == d.base.String() {
					return errRemove
				}
				return nil
			})}
		},
	})
	if got, err := broken.CompareFiles(d.ctx, f.Loss.Entry, true); err != nil || got.Why != f.Problem {
		t.Fatalf("got %+v, %v, want %q", got, err, f.Problem)
	}
	ctx, done := d.Lease(t)
	if _, err := broken.RemoveUnusable(ctx, f.Loss.Entry); !errors.Is(err, errRemove) {
		t.Fatalf("got %v, want %v", err, errRemove)
	}
	done()
	if !d.HasSnapshot(t, "first", d.base) || d.HasSnapshot(t, "first", d.images[0].ChainID) || d.HasSnapshot(t, "first", d.images[1].ChainID) {
		t.Fatal("the snapshots above the damaged one are there, or that is gone")
	}
	d.start(t, d.config.Runtimes())
	report, err := d.Check(d.ctx, nil)
	noError(t, err)
	if report.Differences() != 2 {
		t.Fatalf("got findings %+v, want both keys", report.Findings)
	}
	if done, err := d.Repair(d.ctx, report.Findings[0]); done.Succeeded() || !errdefs.IsUnavailable(err) {
		t.Errorf("the first repair: got %q, %v, want it to remove the damaged snapshot", done, err)
	}
	for _, f := range report.Findings {
		if done, err := d.Repair(d.ctx, f); done != Unpacked || err != nil {
			t.Errorf("repair of %s: got %q, %v, want %q", f.Subject, done, err, Unpacked)
		}
	}
	d.wantIntact(t)
}
