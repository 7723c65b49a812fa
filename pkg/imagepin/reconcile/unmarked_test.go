package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
)

// fakeBoot is a boot after another one.
type fakeBoot struct {
	id       string
	compared bool
	began    time.Time
	synced   []string // tags
	fail     error    // of Sync
}

func (b *fakeBoot) ID() string               { return b.id }
func (b *fakeBoot) Compared() (bool, error)  { return b.compared, nil }
func (b *fakeBoot) SetCompared() error       { b.compared = true; return nil }
func (b *fakeBoot) Older(at time.Time) bool  { return at.Before(b.began) }
func (b *fakeBoot) Before(at time.Time) bool { return at.Before(b.began) }
func (b *fakeBoot) Sync(_ context.Context, e imagepin.Entry) error {
	b.synced = append(b.synced, e.Ref)
	return b.fail
}

// reboot starts another reconciler after a boot, which has not compared anything yet. queued are the losses that it queues.
func (d *filesNode) reboot(t *testing.T, b *fakeBoot) (queued *[]health.Loss) {
	t.Helper()
	queued = new([]health.Loss)
	d.boot, d.damaged = b, func(_ context.Context, losses ...health.Loss) { *queued = append(*queued, losses...) }
	d.start(t, d.config.Runtimes())
	return queued
}

// offered returns the references in the index.
func (d *filesNode) offered() (refs []string) {
	for _, img := range d.store.Images() {
		for _, e := range img.Entries {
			refs = append(refs, e.Ref)
		}
	}
	return refs
}

// TestUnmarkedAfterBoot replaces the content of a file by zeros, as a power cut can. After the boot, no image is offered before it is
// compared; the damaged one is queued for repair and never offered, and the other one is made durable and marked, once.
func TestUnmarkedAfterBoot(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			d := newFilesNode(t, kind)
			path := filepath.Join(d.directory(t, d.images[0].ChainID), "etc/a")
			noError(t, os.WriteFile(path, bytes.Repeat([]byte{0}, 1), 0o755))
			b := &fakeBoot{id: "second", began: time.Now().Add(time.Hour)}
			queued := d.reboot(t, b)
			if got := d.offered(); len(got) > 0 || b.compared {
				t.Fatalf("before: %q are offered, all compared: %t", got, b.compared)
			}
			report, err := d.Check(d.ctx, nil)
			noError(t, err)
			if len(report.Findings) > 0 || report.Checked != 2 {
				t.Errorf("before: a check finds %+v", report)
			}
			waited := make(chan error, 2)
			for _, name := range []string{"registry.example/b:other", d.images[1].Config.Digest.String()} {
				go func() { waited <- d.WaitCompared(d.ctx, name) }()
			}
			d.unmarked.run(d.ctx)
			for range 2 {
				noError(t, <-waited)
			}
			noError(t, d.WaitCompared(d.ctx, tagA))
			if got := d.offered(); !slices.Equal(got, []string{tagB}) || !b.compared {
				t.Errorf("after: %q are offered, all compared: %t", got, b.compared)
			}
			if len(*queued) != 1 || (*queued)[0].Entry.Ref != tagA || !(*queued)[0].DamagedFiles {
				t.Errorf("queued %+v, want the repair of %s", *queued, tagA)
			}
			if e := d.store.ByRef(tagB)[0]; e.Durable != "second" || !slices.Equal(b.synced, []string{tagB}) {
				t.Errorf("got mark %q, synced %q", e.Durable, b.synced)
			}
			d.wantNothingLeft(t)

			third := &fakeBoot{id: "third", began: time.Now().Add(time.Hour)}
			d.reboot(t, third)
			if got := d.offered(); !slices.Equal(got, []string{tagB}) {
				t.Errorf("after the next boot: %q are offered", got)
			}
			d.unmarked.run(d.ctx)
			if len(third.synced) > 0 || !third.compared {
				t.Errorf("after the next boot: synced %q, all compared: %t", third.synced, third.compared)
			}
		})
	}
}

// ofOtherTool removes all keys, and all records but the tags, as before imagepin was installed.
func (d *filesNode) ofOtherTool(t *testing.T) {
	t.Helper()
	all, err := d.Images.List(d.ctx)
	noError(t, err)
	for _, img := range all {
		if img.Name != tagA && img.Name != tagB {
			noError(t, d.Images.Delete(d.ctx, img.Name))
			continue
		}
		img.Labels = nil
		_, err := d.Images.Update(d.ctx, img, "labels")
		noError(t, err)
	}
}

// removeRecords removes all records, and returns them. Nothing collects their content.
func (d *filesNode) removeRecords(t *testing.T) []images.Image {
	t.Helper()
	all, err := d.Images.List(d.ctx)
	noError(t, err)
	for _, img := range all {
		noError(t, d.Images.Delete(d.ctx, img.Name))
	}
	return all
}

// TestUnmarkedAdopted checks that the images of other tools that are adopted after a boot are compared too, before they are offered.
func TestUnmarkedAdopted(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	d.ofOtherTool(t)
	noError(t, os.Truncate(filepath.Join(d.directory(t, d.images[0].ChainID), "etc/a"), 0))
	b := &fakeBoot{id: "second", began: time.Now().Add(time.Hour)}
	queued := d.reboot(t, b)
	if got := d.offered(); len(got) > 0 {
		t.Errorf("before: %q are offered", got)
	}
	d.unmarked.run(d.ctx)
	if got := d.offered(); !slices.Equal(got, []string{tagB}) || d.store.ByRef(tagB)[0].Durable != "second" {
		t.Errorf("after: %q are offered", got)
	}
	if len(*queued) != 1 || (*queued)[0].Entry.Ref != tagA || !(*queued)[0].DamagedFiles {
		t.Errorf("queued %+v, want the repair of %s", *queued, tagA)
	}
}

// TestAdoptedLate checks that images of other tools that get a key when all others are compared are compared first: at a start with another
// runtime handler, and while the node runs. Images of the running boot are offered at once, unless their snapshots were on the node when
// the process began. A key that is ready stays so.
func TestAdoptedLate(t *testing.T) {
	for name, restart := range map[string]bool{"at a start": true, "while the node runs": false} {
		for old, began := range map[bool]time.Time{true: time.Now().Add(time.Hour), false: time.Now().Add(-time.Hour)} {
			t.Run(fmt.Sprintf("%s, older: %t", name, old), func(t *testing.T) {
				d := newFilesNode(t, "overlayfs")
				d.ofOtherTool(t)
				noError(t, os.Truncate(filepath.Join(d.directory(t, d.images[0].ChainID), "etc/a"), 0))
				var later []images.Image
				if !restart {
					later = d.removeRecords(t)
				}
				d.held = true
				d.reboot(t, &fakeBoot{id: "second", began: began, compared: true})
				retained := make(syncs, 10)
				d.config.Retained = retained
				for _, img := range later {
					_, err := d.Images.Create(d.ctx, img)
					noError(t, err)
					noError(t, d.syncRecord(d.ctx, img.Name))
				}
				queued := d.queue.take()
				if !old && restart {
					if got := d.offered(); len(got) != 2 || len(queued) > 0 {
						t.Errorf("%q are offered, queued %+v", got, queued)
					}
					return
				}
				if got := d.offered(); len(got) > 0 || len(queued) != 2 || len(d.store.Damaged()) > 0 {
					t.Fatalf("%q are offered, queued %+v, damaged %+v", got, queued, d.store.Damaged())
				}
				for _, loss := range queued {
					done, err := d.repairs.repairKey(d.ctx, loss.Loss)
					noError(t, err)
					if want := map[string]Repaired{tagA: Unpacked, tagB: Recorded}[loss.Entry.Ref]; done != want {
						t.Errorf("%s: %s, want %s", loss.Entry.Ref, done, want)
					}
				}
				if got := d.offered(); len(got) != 2 || len(retained) != 2 {
					t.Errorf("after the repairs: %q are offered, %d images are retained", got, len(retained))
				}
				for _, img := range later {
					noError(t, d.syncRecord(d.ctx, img.Name))
				}
				if again := d.queue.take(); len(again) > 0 || len(d.offered()) != 2 {
					t.Errorf("when they are ready: %q are offered, queued %+v", d.offered(), again)
				}
				d.wantIntact(t)
			})
		}
	}
}

// TestUnmarkedUnverified checks that an image whose layers are not on the node is offered without a mark, and so is one that cannot be
// made durable.
func TestUnmarkedUnverified(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	noError(t, d.Content.Delete(d.ctx, d.images[0].Layer.Digest))
	b := &fakeBoot{id: "second", began: time.Now().Add(time.Hour), fail: errors.New("the disk fails")}
	queued := d.reboot(t, b)
	d.unmarked.run(d.ctx)
	if got := d.offered(); len(got) != 2 || !b.compared || len(*queued) > 0 || !slices.Equal(b.synced, []string{tagB}) {
		t.Errorf("%q are offered, all compared: %t, queued %+v, synced %q", got, b.compared, *queued, b.synced)
	}
	if a, b := d.Unverified(d.store.ByRef(tagA)[0]), d.Unverified(d.store.ByRef(tagB)[0]); !strings.HasSuffix(a, "is not on the node") || b != "" {
		t.Errorf("got unverified %q and %q, want only %s", a, b, tagA)
	}
	for _, img := range d.store.Images() {
		if mark := img.Entries[0].Durable; mark != "" {
			t.Errorf("%s has mark %q", img.Entries[0].Ref, mark)
		}
	}
}

// TestUnmarkedWithoutDirectory checks that an image is not offered if the directory of a snapshot is gone, the highest one or another one.
func TestUnmarkedWithoutDirectory(t *testing.T) {
	for name, top := range map[string]bool{"highest": true, "lowest": false} {
		t.Run(name, func(t *testing.T) {
			d := newFilesNode(t, "overlayfs")
			chainID := d.base
			if top {
				chainID = d.images[0].ChainID
			}
			noError(t, os.RemoveAll(filepath.Dir(d.directory(t, chainID))))
			queued := d.reboot(t, &fakeBoot{id: "second", began: time.Now().Add(time.Hour)})
			d.unmarked.run(d.ctx)
			want := []string{tagB}
			if !top {
				want = nil
			}
			if got := d.offered(); !slices.Equal(got, want) {
				t.Errorf("%q are offered, want %q", got, want)
			}
			for _, loss := range *queued {
				if done, err := d.repairs.repairKey(d.ctx, loss); err != nil || done != Unpacked {
					t.Errorf("repair of %s: got %s, %v, want %s", loss.Entry.Ref, done, err, Unpacked)
				}
			}
			d.wantIntact(t)
		})
	}
}

// TestUnmarkedOfThisBoot checks that images of the running boot, and all after a comparison, are offered at once.
func TestUnmarkedOfThisBoot(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	for name, b := range map[string]*fakeBoot{"of this boot": {id: "x"}, "compared": {id: "x", compared: true, began: time.Now().Add(time.Hour)}} {
		d.reboot(t, b)
		if got := d.offered(); len(got) != 2 {
			t.Errorf("%s: %q are offered", name, got)
		}
		noError(t, d.WaitCompared(d.ctx, tagA))
	}
}

// TestUnmarkedInOrder checks that an image that a call waits for is compared first, and that a start that ends before all are compared
// lets calls continue, and is followed by another comparison.
func TestUnmarkedInOrder(t *testing.T) {
	for _, tag := range []string{tagA, tagB} {
		d := newFilesNode(t, "overlayfs")
		b := &fakeBoot{id: "second", began: time.Now().Add(time.Hour)}
		d.reboot(t, b)
		gone, cancel := context.WithCancel(d.ctx)
		cancel()
		if err := d.WaitCompared(gone, tag); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want %v", err, context.Canceled)
		}
		d.unmarked.run(gone)
		noError(t, d.WaitCompared(d.ctx, tag))
		if b.compared || len(d.offered()) > 0 {
			t.Errorf("after a start that ended: all compared: %t, offered %q", b.compared, d.offered())
		}
		d.reboot(t, b)
		if err := d.WaitCompared(gone, tag); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want %v", err, context.Canceled)
		}
		d.unmarked.run(d.ctx)
		if len(b.synced) != 2 || b.synced[0] != tag {
			t.Errorf("compared %q, want %s first", b.synced, tag)
		}
	}
}

// TestPullDuringComparison checks that an image on a snapshot that is not compared yet is compared before a pull records it.
func TestPullDuringComparison(t *testing.T) {
	d := newFilesNode(t, "overlayfs")
	e := d.store.ByRef(tagA)[0]
	d.truncate(t, d.base, "bin/base")
	d.reboot(t, &fakeBoot{id: "second", began: time.Now().Add(time.Hour)})
	if why, err := d.config.Checker.SnapshotDamage(d.ctx, e); err != nil || why == "" {
		t.Errorf("got %q, %v, want the damage", why, err)
	}
}
