//go:build linux

package reconcile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/diff/apply"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/layerfiles"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/replace"
)

// replacing is the replacer of a filesNode, whose snapshotter it knows by the name of its kind.
type replacing struct {
	*replace.Replacer
	kind  string
	users []replace.User
}

// Replace implements Replacer.
func (r *replacing) Replace(ctx context.Context, e imagepin.Entry, from digest.Digest) error {
	e.Target.Snapshotter = r.kind
	return r.Replacer.Replace(ctx, e, from)
}

// withReplacer makes a filesNode replace files, also after a start.
func (d *filesNode) withReplacer(kind string) *replacing {
	applier, r := apply.NewFileSystemApplier(d.Content), &replacing{kind: kind}
	r.Replacer = replace.New(replace.Config{
		Content: d.Content, Leases: d.Leases, Snapshotter: func(string) snapshots.Snapshotter { return d.Snapshotter("first") }, Locks: &pull.Locks{},
		Applier: func(string) (diff.Applier, []diff.ApplyOpt, bool) { return applier, nil, true },
		Sync:    func(context.Context, string) error { return nil },
		Entries: func() []imagepin.Entry { return nil },
		Users:   func(context.Context) ([]replace.User, error) { return r.users, nil },
	})
	d.replacer = r
	d.config.Replacer = r
	return r
}

// damageBelowContainer creates a container on an image, and removes the content of a file of the layer that both images share.
func (d *filesNode) damageBelowContainer(t *testing.T, kind string) (remove func()) {
	t.Helper()
	ctx, done := d.Lease(t)
	_, err := d.Snapshotter("first").Prepare(ctx, "container", d.images[0].ChainID.String())
	noError(t, err)
	d.truncate(t, d.base, "bin/base")
	if kind == "native" { // which copies all files into each snapshot
		d.truncate(t, d.images[0].ChainID, "bin/base")
	}
	return func() {
		noError(t, d.Snapshotter("first").Remove(ctx, "container"))
		done()
	}
}

// TestReplacedFiles damages a file that two images share, below an exited container. A repair replaces the files in the snapshots, and
// both images are ready.
func TestReplacedFiles(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			d := newFilesNode(t, kind)
			d.withReplacer(kind)
			remove := d.damageBelowContainer(t, kind)
			before, err := d.Snapshotter("first").Stat(d.ctx, d.base.String())
			noError(t, err)
			found := d.deep(t)
			if len(found) != 2 {
				t.Fatalf("got findings %+v, want both images", found)
			}
			for _, want := range []struct {
				ref  string
				done Repaired
			}{{tagA, Replaced}, {tagB, Unpacked}} { // what the second one needs has been replaced
				if done, err := d.Repair(d.ctx, found[want.ref]); err != nil || done != want.done {
					t.Errorf("repair of %s: got %q, %v, want %q", want.ref, done, err, want.done)
				}
			}
			if b, err := os.ReadFile(filepath.Join(d.directory(t, d.base), "bin/base")); string(b) != "the base of both" {
				t.Errorf("the file has %q, %v", b, err)
			}
			after, err := d.Snapshotter("first").Stat(d.ctx, d.base.String())
			if err != nil || !after.Created.Equal(before.Created) || len(after.Labels) != len(before.Labels) {
				t.Errorf("the snapshot is %+v, %v, want %+v", after, err, before)
			}
			if len(d.store.ByRef(tagA)) == 0 || len(d.store.ByRef(tagB)) == 0 || len(d.store.Damaged()) > 0 {
				t.Errorf("damaged keys: %+v", d.store.Damaged())
			}
			remove()
			d.wantIntact(t)
		})
	}
}

// TestReplacedInUse damages files below a running container. Its keys stay damaged, also after a start, and after one that cannot
// compare the files, until the container has exited. Then the background repairs them.
func TestReplacedInUse(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	r := d.withReplacer("overlayfs")
	r.users = []replace.User{{Snapshot: "container", Name: "container app of pod shop/cart-0"}}
	remove := d.damageBelowContainer(t, "overlayfs")
	for ref, f := range d.deep(t) {
		done, err := d.Repair(d.ctx, f)
		var typed *imagepin.Error
		if done != Kept || !errors.As(err, &typed) || typed.Reason != imagepin.SnapshotInUse || !strings.Contains(err.Error(), "container app of pod shop/cart-0") {
			t.Errorf("repair of %s: got %q, %v", ref, done, err)
		}
	}
	noError(t, os.Rename(d.File(d.layers[d.images[0].Manifest.Digest][0].Blob.Digest), filepath.Join(d.Dir, "layer")))
	d.start(t, d.config.Runtimes())
	loaded, err := d.load(d.ctx)
	noError(t, err)
	if len(loaded.losses) != 2 || !loaded.losses[0].DamagedFiles || !loaded.losses[1].DamagedFiles || len(d.store.Images()) > 0 {
		t.Fatalf("a start found %+v, and offers %d images", loaded.losses, len(d.store.Images()))
	}
	noError(t, os.Rename(filepath.Join(d.Dir, "layer"), d.File(d.layers[d.images[0].Manifest.Digest][0].Blob.Digest)))
	for _, loss := range loaded.losses {
		if retry := d.repairs.repairOne(d.ctx, queued{Loss: loss}); retry != repairLastInUse {
			t.Errorf("it is tried again after %s, want %s", retry, repairLastInUse)
		}
	}
	r.users = nil
	for _, loss := range loaded.losses {
		if retry := d.repairs.repairOne(d.ctx, queued{Loss: loss}); retry != 0 {
			t.Errorf("after the end of the container it is tried again after %s", retry)
		}
	}
	remove()
	d.wantIntact(t)
	if got := d.offered(); len(got) != 2 {
		t.Errorf("%q are offered, want both images", got)
	}
}

// TestNotReplaceable checks that a damaged snapshot whose directory cannot be exchanged is kept, with an error that says what to do,
// until nothing stands on it.
func TestNotReplaceable(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	d.withReplacer("erofs")
	remove := d.damageBelowContainer(t, "overlayfs")
	f := d.deep(t)[tagA]
	done, err := d.Repair(d.ctx, f)
	var typed *imagepin.Error
	if done != Kept || !errors.As(err, &typed) || typed.Reason != imagepin.SnapshotNotReplaceable || !errdefs.IsNotImplemented(err) {
		t.Errorf("got %q, %v", done, err)
	}
	if from, err := d.LowestUnusable(d.ctx, f.Loss.Entry); err != nil || from != d.base {
		t.Errorf("the lowest unusable snapshot is %s, %v, want %s", from, err, d.base)
	}
	remove()
	if done, err := d.Repair(d.ctx, f); done != Unpacked || err != nil {
		t.Errorf("got %q, %v, want %q", done, err, Unpacked)
	}
	if from, err := d.LowestUnusable(d.ctx, f.Loss.Entry); err != nil || from != "" {
		t.Errorf("the lowest unusable snapshot is %s, %v, want none", from, err)
	}
}

// TestAdoptedOnDamage checks that an image that another tool has on a damaged snapshot is adopted when that is repaired.
func TestAdoptedOnDamage(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	r := d.withReplacer("overlayfs")
	r.users = []replace.User{{Snapshot: "container", Name: "container app of pod shop/cart-0"}}
	remove := d.damageBelowContainer(t, "overlayfs")
	d.deep(t)
	img, err := d.Images.Get(d.ctx, tagA)
	noError(t, err)
	img.Name, img.Labels = "registry.example/other:1", nil
	img, err = d.Images.Create(d.ctx, img)
	noError(t, err)
	q := &queue{repairs: d.repairs, keys: make(map[imagepin.Key]losses), more: make(chan struct{}, 1)} // that does not run
	d.repairs.queues[queueName{snapshotter: "first"}] = q
	noError(t, d.adopter.adoptNow(d.ctx, img, d.unanswered.onNode(d.ctx), d.unmarked.late))
	queued := q.take()
	if got := d.store.ByRef(img.Name); len(got) > 0 || len(queued) != 1 {
		t.Fatalf("offered %+v, queued %+v, want only a repair", got, queued)
	}
	if retry := d.repairs.repairOne(d.ctx, queued[0]); retry != repairLastInUse {
		t.Errorf("it is tried again after %s, want %s", retry, repairLastInUse)
	}
	r.users = nil
	if retry := d.repairs.repairOne(d.ctx, queued[0]); retry != 0 || len(d.store.ByRef(img.Name)) != 1 {
		t.Errorf("after the end of the container: offered %+v, it is tried again after %s", d.store.ByRef(img.Name), retry)
	}
	remove()
	d.wantIntact(t)
}

// hookedWalk is a snapshotter that calls a function once, after it has listed the snapshots and before it returns them.
type hookedWalk struct {
	snapshots.Snapshotter
	hook func()
}

// Walk implements snapshots.Snapshotter.
func (h *hookedWalk) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	var all []snapshots.Info
	err := h.Snapshotter.Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		all = append(all, i)
		return nil
	}, filters...)
	if hook := h.hook; hook != nil {
		h.hook = nil
		hook()
	}
	for _, i := range all {
		if err == nil {
			err = fn(ctx, i)
		}
	}
	return err
}

// TestReplacedDuringList replaces files that a repair could not replace before, while a list of the snapshots has their label.
func TestReplacedDuringList(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	r := d.withReplacer("overlayfs")
	r.users = []replace.User{{Snapshot: "container", Name: "container app of pod shop/cart-0"}}
	remove := d.damageBelowContainer(t, "overlayfs")
	h := &hookedWalk{Snapshotter: d.Snapshotter("first")}
	d.config.Checker = health.New(health.Config{
		Images: d.store, Content: d.Content, Leases: d.Leases, Runtimes: d.config.Runtimes, Snapshotter: func(string) snapshots.Snapshotter { return h },
	})
	found := d.deep(t)
	for ref, f := range found {
		if done, err := d.Repair(d.ctx, f); done != Kept {
			t.Errorf("repair of %s: got %q, %v, want %q", ref, done, err, Kept)
		}
	}
	h.hook = func() {
		r.users = nil
		for ref, f := range found {
			if done, err := d.Repair(d.ctx, f); !done.Succeeded() || err != nil {
				t.Errorf("repair of %s: got %q, %v", ref, done, err)
			}
		}
	}
	_, err := d.config.Checker.Inventory(d.ctx)
	noError(t, err)
	if why, err := d.config.Checker.KnownDamage(d.ctx, found[tagA].Loss.Entry); why != "" || err != nil || h.hook != nil {
		t.Errorf("the new files are known as damaged: %q, %v", why, err)
	}
	remove()
	d.wantIntact(t)
}

// TestReplacedDuringComparison replaces files below a container, or removes and unpacks their snapshot, after a comparison has read them
// and before it notes the damage. That is not the damage of the new files.
func TestReplacedDuringComparison(t *testing.T) {
	for name, inUse := range map[string]bool{"replaced": true, "unpacked again": false} {
		t.Run(name, func(t *testing.T) {
			d := newFilesNode(t, "overlayfs")
			d.withReplacer("overlayfs")
			remove := d.damageBelowContainer(t, "overlayfs")
			if !inUse {
				remove()
			}
			e := d.store.ByRef(tagA)[0]
			var hook func()
			h := ctdtest.Snapshots{Snapshotter: d.Snapshotter("first"), Before: ctdtest.On("Stat", func(name string) error {
				if call := hook; call != nil && name == d.base.String() {
					hook = nil
					call()
				}
				return nil
			})}
			d.config.Checker = health.New(health.Config{
				Images: d.store, Content: d.Content, Leases: d.Leases, Runtimes: d.config.Runtimes, Snapshotter: func(string) snapshots.Snapshotter { return h },
			})
			hook = func() {
				for ref, f := range d.deep(t) {
					if done, err := d.Repair(d.ctx, f); !done.Succeeded() || err != nil {
						t.Errorf("repair of %s: got %q, %v", ref, done, err)
					}
				}
			}
			found, err := d.config.Checker.CompareFiles(d.ctx, e, true)
			if err != nil && !errdefs.IsNotFound(err) || found.State == layerfiles.Damaged || hook != nil {
				t.Errorf("got %+v, %v, repaired %t", found, err, hook == nil)
			}
			if why, err := d.config.Checker.KnownDamage(d.ctx, e); why != "" || err != nil {
				t.Errorf("the new files are known as damaged: %q, %v", why, err)
			}
			if inUse {
				remove()
			}
			d.wantIntact(t)
		})
	}
}
