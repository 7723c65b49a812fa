package reconcile

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// unreachable is a puller whose registry cannot be reached.
func unreachable() failingWith {
	return failingWith{failingPuller{func() {}}, errdefs.ErrUnavailable}
}

// deeplyDamaged returns a node with a damaged key whose damage only a deep check finds, and the finding.
func deeplyDamaged(t *testing.T) (*deepNode, health.Finding) {
	t.Helper()
	d := newDeepNode(t)
	d.flip(t, d.images[0].Config.Digest)
	report, err := d.DeepCheck(d.ctx, health.DeepOptions{})
	noError(t, err)
	if len(report.Findings) != 1 || report.Findings[0].Kind != health.LostKey {
		t.Fatalf("got findings %+v, want one lost key", report.Findings)
	}
	found := report.Findings[0]
	d.config.Puller = unreachable()
	if done, err := d.Repair(d.ctx, found); done != Unreachable || err == nil {
		t.Fatalf("got %q, %v, want %q", done, err, Unreachable)
	}
	return d, found
}

// TestDeepDamageIsNotBelieved damages content so that only a deep check finds it, and the registry cannot be reached. Neither
// a later attempt in the background, nor a check, nor a start takes the key for ready, until the content is repaired.
func TestDeepDamageIsNotBelieved(t *testing.T) {
	d, found := deeplyDamaged(t)
	e := found.Loss.Entry
	d.config.Maker = leasing{node: d.Node, store: d.store, before: new(func())}
	ctx, stop := context.WithCancel(d.ctx)
	defer d.repairs.wait()
	defer stop()
	want := func(when string, ready bool) {
		t.Helper()
		if _, ok := d.store.Get(e.Key); ok != ready {
			t.Errorf("%s: the key is ready: %t, want %t", when, ok, ready)
		}
	}
	want("after the repair", false)
	waiting := d.repairs.recheck(d.ctx, []queued{{Loss: found.Loss}})
	if waiting[0].Unpackable || !waiting[0].Unverified {
		t.Errorf("before the next attempt: got %+v, want an unverified key that is not unpacked", waiting[0].Loss)
	}
	if retry := d.repairs.repairOne(ctx, waiting[0]); retry != repairLastFetch { // the image is from a file
		t.Errorf("the next attempt: got retry after %s, want %s", retry, repairLastFetch)
	}
	want("after the next attempt", false)
	report, err := d.Check(d.ctx, nil)
	noError(t, err)
	if len(report.Findings) != 1 || report.Checked != 2 || !report.Findings[0].Loss.Unverified {
		t.Errorf("a check found %+v, want the damaged key", report.Findings)
	}
	if done, err := d.Repair(d.ctx, report.Findings[0]); done != Unreachable || err == nil {
		t.Errorf("another repair: got %q, %v, want %q", done, err, Unreachable)
	}
	want("after another repair", false)
	loaded, err := d.load(d.ctx)
	noError(t, err)
	want("after a start", false)
	if len(loaded.losses) != 1 || len(d.store.Damaged()) != 1 {
		t.Errorf("a start found %+v and damaged keys %+v", loaded.losses, d.store.Damaged())
	}
	d.flip(t, d.images[0].Config.Digest)
	if retry := d.repairs.repairOne(ctx, queued{Loss: loaded.losses[0]}); retry != 0 {
		t.Errorf("got retry after %s", retry)
	}
	want("after the content was repaired", true)
}

// TestRepairDamaged finds the damage of a key in a call that does not repair it. The key is repaired in the background, once
// the node looks for such keys, and is not queued twice. It does not count as not repaired when a call has repaired or removed it.
func TestRepairDamaged(t *testing.T) {
	d := newDeepNode(t)
	d.config.Maker = leasing{node: d.Node, store: d.store, before: new(func())}
	d.config.Puller = unreachable()
	file := d.File(d.images[0].Config.Digest)
	b, err := os.ReadFile(file)
	noError(t, err)
	noError(t, os.Remove(file))
	hidden, err := d.store.EvictBlob(d.ctx, d.images[0].Config.Digest)
	if err != nil || len(hidden) != 1 {
		t.Fatalf("got %v, %v, want one key", hidden, err)
	}
	d.RepairDamaged()
	if n := d.PendingRepairs(); n != 0 {
		t.Errorf("before a start: got %d repairs, want none", n)
	}
	ctx, stop := context.WithCancel(d.ctx)
	defer d.repairs.wait()
	defer stop()
	defer d.repairs.begin(ctx)()
	d.RepairDamaged()
	d.waitUntil(t, func() bool { known, _ := d.store.GetDamaged(hidden[0].Key); return !known.DamagedAt.IsZero() })
	d.RepairDamaged()
	if n := d.PendingRepairs(); n != 1 {
		t.Errorf("got %d repairs, want one", n)
	}
	noError(t, os.WriteFile(file, b, 0o600))
	d.repairs.add(ctx, health.Loss{Entry: hidden[0], Reason: "lost", Unverified: true}) // as the next start
	d.waitUntil(t, func() bool { _, ready := d.store.Get(hidden[0].Key); return ready })
	if n := d.PendingRepairs(); n != 0 {
		t.Errorf("with a retry of a key that is ready: got %d repairs, want none", n)
	}
	noError(t, os.Remove(file))
	_, err = d.store.EvictBlob(d.ctx, d.images[0].Config.Digest)
	noError(t, err)
	if n := d.PendingRepairs(); n != 1 {
		t.Errorf("after it is damaged again: got %d repairs, want one", n)
	}
	_, err = d.store.DropDamaged(d.ctx, hidden[0].Key)
	noError(t, err)
	if n := d.PendingRepairs(); n != 0 {
		t.Errorf("with a retry of a key that was removed: got %d repairs, want none", n)
	}
}

// TestSchedule checks that losses that wait are not tried again because of a new one.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tried []string
		repair := func(_ context.Context, l queued) time.Duration {
			tried = append(tried, l.Reason)
			return repairLast
		}
		waiting, _ := repairAll(t.Context(), []queued{{Loss: health.Loss{Reason: "old"}}}, repair)
		if next := schedule(waiting, time.Minute); next != time.Minute {
			t.Errorf("got the first loss due in %s, want a minute", next)
		}
		time.Sleep(30 * time.Second)
		waiting, _ = repairAll(t.Context(), append(waiting, queued{Loss: health.Loss{Reason: "new"}}), repair)
		if next := schedule(waiting, 2*time.Minute); next != 30*time.Second || len(waiting) != 2 {
			t.Errorf("got %d losses, due in %s, want 2 in 30s", len(waiting), next)
		}
		time.Sleep(30 * time.Second)
		waiting, _ = repairAll(t.Context(), waiting, repair)
		if next := schedule(waiting, 4*time.Minute); next != 90*time.Second {
			t.Errorf("got the next loss due in %s, want 1m30s", next)
		}

		first, last := queued{Loss: health.Loss{Reason: "first"}, due: time.Now()}, queued{Loss: health.Loss{Reason: "last"}, due: time.Now().Add(time.Second)}
		waiting, longest := repairAll(t.Context(), []queued{first, last}, func(context.Context, queued) time.Duration {
			time.Sleep(2 * time.Second)
			return repairLast
		})
		if next := schedule(waiting, time.Minute); next != -time.Second || longest != repairLast {
			t.Errorf("got the loss that became due during a repair due in %s, longest delay %s, want -1s and %s", next, longest, repairLast)
		}
		if waiting, longest := repairAll(t.Context(), []queued{{due: time.Now().Add(time.Second)}}, repair); len(waiting) != 1 || longest != 0 {
			t.Errorf("got %d losses and the longest delay %s, want the one that is not due, and none", len(waiting), longest)
		}
		if len(tried) != 3 || tried[0] != "old" || tried[1] != "new" || tried[2] != "old" {
			t.Errorf("got attempts %q, want old, new, old", tried)
		}
	})
}

// unpacking is a Maker whose images are unpacked by a function, which also records the key.
type unpacking struct {
	Maker
	unpack func(ctx context.Context, record func(context.Context, imagepin.Entry) error) error
}

func (u unpacking) Unpack(ctx context.Context, _ imagepin.Entry, record func(context.Context, imagepin.Entry) error) error {
	return u.unpack(ctx, record)
}

// TestSnapshotRemovedBeforeRecord removes a snapshot while a repair records its key. The event of the removal found no key, so the test
// has none. The key is repaired again.
func TestSnapshotRemovedBeforeRecord(t *testing.T) {
	d := newDeepNode(t)
	img := d.images[0]
	e := d.store.ByID(img.Config.Digest)[0]
	ctx, stop := context.WithCancel(d.ctx)
	defer d.repairs.wait()
	defer stop()
	defer d.repairs.begin(ctx)()
	remove := func() {
		if err := d.Snapshotter("first").Remove(ctx, img.ChainID.String()); err != nil {
			t.Error(err)
		}
	}
	var unpacks atomic.Int32
	d.config.Maker = unpacking{unpack: func(_ context.Context, record func(context.Context, imagepin.Entry) error) error {
		n := unpacks.Add(1)
		leased, done := d.Lease(t)
		defer done()
		d.Unpack(leased, t, img, "first")
		err := record(leased, e)
		if n == 1 {
			remove()
		}
		return err
	}}
	remove()
	noError(t, d.snapshotGone(ctx, store.Snapshot{Snapshotter: "first", ChainID: img.ChainID}))
	d.waitUntil(t, func() bool {
		_, ready := d.store.Get(e.Key)
		return unpacks.Load() == 2 && ready && d.HasSnapshot(t, "first", img.ChainID) && d.PendingRepairs() == 0
	})
}

// leasingThen is a Maker that calls then after it has run a function with a lease.
type leasingThen struct {
	leasing
	then func()
}

func (l leasingThen) WithLease(ctx context.Context, entries []imagepin.Entry, fn func(context.Context) error) error {
	defer l.then()
	return l.leasing.WithLease(ctx, entries, fn)
}

// TestSnapshotRemovedWhileVerified removes a snapshot while a key that was damaged is recorded again, because nothing is wrong with it
// any more. The event of the removal found no key. The key is repaired again.
func TestSnapshotRemovedWhileVerified(t *testing.T) {
	d := newDeepNode(t)
	img := d.images[0]
	e := d.store.ByID(img.Config.Digest)[0]
	_, seen, _ := d.store.See(e.Key)
	if evicted, err := d.store.EvictSeen(d.ctx, seen, "it was damaged"); err != nil || !evicted {
		t.Fatal(evicted, err)
	}
	removed := func() {
		if err := d.Snapshotter("first").Remove(d.ctx, img.ChainID.String()); err != nil {
			t.Error(err)
		}
	}
	d.config.Maker = leasingThen{leasing{node: d.Node, store: d.store, before: new(func())}, removed}
	var again []health.Loss
	d.repairs.again = func(l health.Loss) { again = append(again, l) }
	if _, recorded, err := d.repairs.verify(d.ctx, health.Loss{Entry: e, Unverified: true}); err != nil || !recorded {
		t.Errorf("recorded %t, %v", recorded, err)
	}
	if _, ready := d.store.Get(e.Key); ready || len(again) != 1 || again[0].Entry.Key != e.Key {
		t.Errorf("the key without its snapshot is ready: %t, queued again: %+v", ready, again)
	}
}
