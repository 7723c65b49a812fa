package reconcile

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// failingPuller fails after it has called meanwhile.
type failingPuller struct{ meanwhile func() }

func (p failingPuller) Repair(context.Context, imagepin.Entry) (pull.Outcome, error) {
	p.meanwhile()
	return pull.Failed, errdefs.ErrPermissionDenied
}

func (failingPuller) RepairBlob(context.Context, imagepin.Entry, digest.Digest) error {
	return errdefs.ErrPermissionDenied
}

// TestFailedRepairOfAMovedTag repairs a key whose manifest is gone, and the registry denies the node access. A pull moves
// the tag while the repair checks the key again. The key and the record of the pull stay.
func TestFailedRepairOfAMovedTag(t *testing.T) {
	d := newDeepNode(t)
	noError(t, os.Remove(d.File(d.images[0].Manifest.Digest)))
	report, err := d.Check(d.ctx, nil)
	noError(t, err)
	lost := report.Findings[slices.IndexFunc(report.Findings, func(f health.Finding) bool { return f.Kind == health.LostKey })]
	key := lost.Loss.Entry.Key
	var during func()
	contents := ctdtest.Content{Store: d.Content, Before: ctdtest.On("Info", func(blob string) error {
		if call := during; call != nil && blob == d.images[0].Manifest.Digest.String() {
			during = nil
			call()
		}
		return nil
	})}
	d.config.Puller = failingPuller{func() { // the repair reads the content again from here on
		d.config.Checker = health.New(health.Config{
			Images: d.store, Content: contents, Leases: d.Leases, Snapshotter: d.Snapshotter, Runtimes: d.config.Runtimes,
		})
		during = func() { d.pullAs(t, key, "registry.example/b:1") }
	}}
	done, err := d.Repair(d.ctx, lost)
	if done != Recorded || err != nil {
		t.Errorf("got %q, %v, want %q", done, err, Recorded)
	}
	if _, ok := d.store.Get(key); !ok {
		t.Errorf("key %s is gone", key)
	}
	if _, err := d.Images.Get(d.ctx, key.Ref); err != nil {
		t.Errorf("record of the tag: %v", err)
	}
}

// pullAs records the image of another tag under a key, as a pull does.
func (d *deepNode) pullAs(t *testing.T, key imagepin.Key, tag string) {
	t.Helper()
	other := d.store.ByRef(tag)[0]
	ctx, done := d.Lease(t)
	defer done()
	ref, err := reference.ParseNamed(key.Ref)
	noError(t, err)
	other.Record, err = store.RecordName(ref, other.Root.Digest)
	noError(t, err)
	unlock, err := d.config.Locks.ForUse(ctx, other.Record)
	noError(t, err)
	defer unlock()
	other.Source = imagepin.SourcePull
	byDigest, byTag := other, other
	byDigest.Ref, byTag.Ref = other.Record, key.Ref
	_, err = d.store.Put(ctx, "", byDigest, byTag)
	noError(t, err)
}

// failingWith fails with an error.
type failingWith struct {
	failingPuller
	err error
}

func (p failingWith) Repair(context.Context, imagepin.Entry) (pull.Outcome, error) {
	p.meanwhile()
	return pull.Failed, p.err
}

// TestRepairKeepsWhatIsReadyAgain repairs a key whose manifest is gone, and the registry does not return it. The key is not
// offered any more, unless a pull with other credentials has made the image ready again during the repair. It is dropped
// only if the registry no longer has the image.
func TestRepairKeepsWhatIsReadyAgain(t *testing.T) {
	for _, test := range []struct {
		name   string
		err    error
		pinned bool
		pulled bool
		want   Repaired
	}{
		{"denied", errdefs.ErrPermissionDenied, false, false, Kept},
		{"unreachable", errdefs.ErrUnavailable, false, false, Unreachable},
		{"gone", pull.RegistryError{Err: errdefs.ErrNotFound}, false, false, Dropped},
		{"gone and pinned", pull.RegistryError{Err: errdefs.ErrNotFound}, true, false, Kept},
		{"pulled meanwhile", errdefs.ErrPermissionDenied, false, true, Recorded},
		{"gone, pulled meanwhile", pull.RegistryError{Err: errdefs.ErrNotFound}, false, true, Recorded},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDeepNode(t)
			file := d.File(d.images[0].Manifest.Digest)
			manifest, err := os.ReadFile(file)
			noError(t, err)
			noError(t, os.Remove(file))
			report, err := d.Check(d.ctx, nil)
			noError(t, err)
			at := slices.IndexFunc(report.Findings, func(f health.Finding) bool { return f.Kind == health.LostKey })
			if at < 0 {
				t.Fatalf("got findings %+v, want a lost key", report.Findings)
			}
			lost := report.Findings[at]
			lost.Loss.Entry.Source = imagepin.SourceAdopted
			d.config.Pinned = func(digest.Digest) bool { return test.pinned }
			d.config.Puller = failingWith{failingPuller{func() {
				if test.pulled {
					noError(t, os.WriteFile(file, manifest, 0o600))
				}
			}}, test.err}
			done, err := d.Repair(d.ctx, lost)
			if done != test.want || (err == nil) != test.pulled {
				t.Errorf("got %q, %v, want %q", done, err, test.want)
			}
			if _, ready := d.store.Get(lost.Loss.Entry.Key); ready != test.pulled {
				t.Errorf("the key is in the index: %t, want %t", ready, test.pulled)
			}
			kept := test.want == Kept || test.want == Unreachable
			if done.Succeeded() != test.pulled {
				t.Errorf("result %q is a success: %t, want %t", done, done.Succeeded(), test.pulled)
			}
			if _, damaged := d.store.GetDamaged(lost.Loss.Entry.Key); damaged != kept {
				t.Errorf("the key is damaged: %t, want %t", damaged, kept)
			}
			if kept {
				d.comesBack(t, lost.Loss.Entry, func() { noError(t, os.WriteFile(file, manifest, 0o600)) })
			}
			d.wantNothingLeft(t)
		})
	}
}

// comesBack starts the reconciler again while a key is damaged, and after its content has come back.
func (d *deepNode) comesBack(t *testing.T, e imagepin.Entry, restore func()) {
	t.Helper()
	ctx, stop := context.WithCancel(d.ctx)
	defer d.repairs.wait()
	defer stop()
	d.config.Maker = leasing{node: d.Node, store: d.store, before: new(func())}
	for _, restored := range []bool{false, true} {
		if restored {
			restore()
		}
		loaded, err := d.load(d.ctx)
		noError(t, err)
		if len(loaded.losses) != 1 || loaded.losses[0].Entry.Key != e.Key {
			t.Fatalf("restored %t: got losses %+v, want one of %s", restored, loaded.losses, e.Key)
		}
		if _, ready := d.store.Get(e.Key); ready {
			t.Errorf("restored %t: a start believes a key that was damaged before it is verified", restored)
		}
		if damaged := d.store.Damaged(); len(damaged) != 1 || damaged[0].Reason == "" || damaged[0].DamagedAt.IsZero() {
			t.Errorf("restored %t: got damaged keys %+v", restored, damaged)
		}
		retry := d.repairs.repairOne(ctx, queued{Loss: loaded.losses[0], since: time.Now()})
		if _, ready := d.store.Get(e.Key); ready != restored || (retry == 0) != restored {
			t.Errorf("restored %t: got ready %t, retry after %s", restored, ready, retry)
		}
	}
	img, err := d.Images.Get(d.ctx, e.Record)
	noError(t, err)
	recorded, err := imagepin.DecodeKeyLabel(imagepin.KeyLabelName(e.Key), img.Labels[imagepin.KeyLabelName(e.Key)])
	if err != nil || !recorded.DamagedAt.IsZero() || len(d.store.Damaged()) > 0 {
		t.Errorf("after the repair: got label %+v, %v and damaged keys %v", recorded, err, d.store.Damaged())
	}
}
