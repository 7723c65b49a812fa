package reconcile

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

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
	contents := &duringInfo{Store: d.Content, blob: d.images[0].Manifest.Digest}
	d.config.Puller = failingPuller{func() { // the repair reads the content again from here on
		d.config.Checker = health.New(health.Config{
			Images: d.store, Content: contents, Leases: d.Leases, Snapshotter: d.Snapshotter, Runtimes: d.config.Runtimes,
		})
		contents.run = func() { d.pullAs(t, key, "registry.example/b:1") }
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
	unlock, err := d.config.Locks.(*pull.Locks).ForUse(ctx, other.Record)
	noError(t, err)
	defer unlock()
	other.Source = imagepin.SourcePull
	byDigest, byTag := other, other
	byDigest.Ref, byTag.Ref = other.Record, key.Ref
	_, err = d.store.Put(ctx, "", byDigest, byTag)
	noError(t, err)
}

// duringInfo calls run once, when a blob is looked up.
type duringInfo struct {
	content.Store
	blob digest.Digest
	run  func()
}

func (c *duringInfo) Info(ctx context.Context, d digest.Digest) (content.Info, error) {
	if run := c.run; run != nil && d == c.blob {
		c.run = nil
		run()
	}
	return c.Store.Info(ctx, d)
}

// TestRepairKeepsWhatIsReadyAgain repairs a key whose manifest is gone, and the registry denies the node access. The key
// is dropped, unless a pull with other credentials has made the image ready again during the repair.
func TestRepairKeepsWhatIsReadyAgain(t *testing.T) {
	for _, test := range []struct {
		name   string
		pulled bool
		want   Repaired
	}{
		{"still lost", false, Dropped},
		{"pulled meanwhile", true, Recorded},
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
			d.config.Puller = failingPuller{func() {
				if test.pulled {
					noError(t, os.WriteFile(file, manifest, 0o600))
				}
			}}
			done, err := d.Repair(d.ctx, lost)
			if done != test.want || (err == nil) != test.pulled {
				t.Errorf("got %q, %v, want %q", done, err, test.want)
			}
			if _, ready := d.store.Get(lost.Loss.Entry.Key); ready != test.pulled {
				t.Errorf("the key is in the index: %t, want %t", ready, test.pulled)
			}
			d.wantNothingLeft(t)
		})
	}
}
