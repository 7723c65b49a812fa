package reconcile

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
)

// TestSuspects checks that the snapshots that were on the node at the start are compared before an image that uses them is recorded,
// unless a key needs them: the pull of another tool that a power cut has ended leaves such snapshots. They are compared once.
func TestSuspects(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	a, b := d.store.ByRef(tagA)[0], d.store.ByRef(tagB)[0]
	noError(t, os.Truncate(filepath.Join(d.directory(t, a.ChainID), "etc/a"), 0))
	all, err := d.Images.List(d.ctx)
	noError(t, err)
	for _, img := range all { // of the two images, one is not recorded yet
		if strings.HasPrefix(img.Name, "registry.example/a") {
			noError(t, d.Images.Delete(d.ctx, img.Name))
		}
	}
	d.start(t, d.config.Runtimes())
	reads := func() (n int) {
		for _, l := range d.layers {
			for _, layer := range l {
				n += d.reads[layer.Blob.Digest]
			}
		}
		return n
	}
	before := reads()
	if why, err := d.config.Checker.SnapshotDamage(d.ctx, b); err != nil || why != "" || reads() != before {
		t.Errorf("the image with a key: got damage %q, %v, and %d reads", why, err, reads()-before)
	}
	for range 2 {
		if why, err := d.config.Checker.SnapshotDamage(d.ctx, a); err != nil || !strings.Contains(why, "etc/a") {
			t.Errorf("the image without a key: got %q, %v, want its damage", why, err)
		}
	}
	noError(t, d.RepairSnapshots(d.ctx, a))
	noError(t, d.ApplyLayers(d.ctx, a.ImageID, a.ChainID, d.layers[a.Manifest], "first"))
	for i := range 2 {
		before = reads()
		if why, err := d.config.Checker.SnapshotDamage(d.ctx, a); err != nil || why != "" || i > 0 && reads() != before {
			t.Errorf("after the repair: got damage %q, %v, and %d reads", why, err, reads()-before)
		}
	}
}

// TestInterruptedCommit checks that damaged snapshots are removed although the snapshot of an unpack stands on them whose commit a power
// cut has interrupted: containerd has a record of it that a lease holds, the snapshotter has it under another name. The active snapshot of
// an unpack that has ended does not prevent it either.
func TestInterruptedCommit(t *testing.T) {
	for name, interrupted := range map[string]bool{"commit": true, "unpack": false} {
		t.Run(name, func(t *testing.T) {
			var backend snapshots.Snapshotter
			d := newFilesNodeOf(t, func(root string) (_ snapshots.Snapshotter, err error) {
				backend, err = overlay.NewSnapshotter(root)
				return backend, err
			})
			l, err := d.Leases.Create(d.ctx, leases.WithRandomID())
			noError(t, err)
			ctx := leases.WithLease(d.ctx, l.ID)
			const key = "extract-1-abcd sha256:layer"
			_, err = d.Snapshotter("first").Prepare(ctx, key, d.images[0].ChainID.String())
			noError(t, err)
			if interrupted {
				var found string
				noError(t, backend.Walk(ctx, func(_ context.Context, i snapshots.Info) error {
					if strings.HasSuffix(i.Name, key) {
						found = i.Name
					}
					return nil
				}))
				noError(t, backend.Remove(ctx, found))
			}
			noError(t, os.Truncate(filepath.Join(d.directory(t, d.images[0].ChainID), "etc/a"), 0))
			d.start(t, d.config.Runtimes())
			found, ok := d.deep(t)[tagA]
			if !ok {
				t.Fatal("the damage is not found")
			}
			if done, err := d.Repair(d.ctx, found); err != nil || done != Unpacked {
				t.Errorf("repair: got %s, %v, want %s", done, err, Unpacked)
			}
			if found := d.deep(t); len(found) > 0 {
				t.Errorf("after the repair: got findings %+v", found)
			}
		})
	}
}

// TestDeepDamageOfSuspect checks that damage which only a deep comparison finds is found on a suspect too.
func TestDeepDamageOfSuspect(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	e := d.store.ByRef(tagA)[0]
	path := filepath.Join(d.directory(t, e.ChainID), "etc/a")
	info, err := os.Stat(path)
	noError(t, err)
	noError(t, os.WriteFile(path, []byte("y"), 0o755))
	noError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
	_, seen, ok := d.store.See(e.Key)
	if !ok {
		t.Fatal("the image is not ready")
	}
	_, err = d.store.EvictSeen(d.ctx, seen, "a deep check has found it")
	noError(t, err)
	_, err = d.store.MarkDamaged(d.ctx, e, "a deep check has found it")
	noError(t, err)
	d.held = true
	d.start(t, d.config.Runtimes())
	for range 2 {
		if why, err := d.config.Checker.SnapshotDamage(d.ctx, e); err != nil || why == "" {
			t.Errorf("got %q, %v, want the damage", why, err)
		}
	}
}

// TestSuspectWithoutLayers checks that a suspect that cannot be compared is looked at once.
func TestSuspectWithoutLayers(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	a := d.store.ByRef(tagA)[0]
	layers := d.layers[a.Manifest]
	noError(t, d.Content.Delete(d.ctx, layers[0].Blob.Digest))
	d.removeRecords(t)
	d.start(t, d.config.Runtimes())
	for i := range 2 {
		clear(d.reads)
		if why, err := d.config.Checker.SnapshotDamage(d.ctx, a); err != nil || why != "" {
			t.Errorf("got %q, %v, want no damage", why, err)
		}
		if n := d.reads[layers[1].Blob.Digest]; i > 0 && n > 0 {
			t.Errorf("%d more reads", n)
		}
	}
}
