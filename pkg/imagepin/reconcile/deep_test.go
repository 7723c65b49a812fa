package reconcile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// deepNode is a node with a reconciler.
type deepNode struct {
	*ctdtest.Node
	ctx context.Context
	*Reconciler
	store  *store.Store
	images []ctdtest.Image
}

// newEmptyNode returns a deepNode without images.
func newEmptyNode(t *testing.T) *deepNode {
	t.Helper()
	n := ctdtest.New(t, "first", "second")
	runtimes := ctdtest.Runtimes(t, "first")
	d := &deepNode{Node: n, ctx: n.Context(t), store: store.New(storeConfig(n, runtimes))}
	d.Reconciler = reconcilerOf(n, storeConfig(n, runtimes), d.store)
	return d
}

// newDeepNode returns a deepNode with two images that share no content.
func newDeepNode(t *testing.T) *deepNode {
	t.Helper()
	d := newEmptyNode(t)
	for _, name := range []string{"a", "b"} {
		blobs := ctdtest.Blobs{}
		img := blobs.Image("linux/amd64", name, nil)
		ctx, done := d.Lease(t)
		d.Write(ctx, t, blobs)
		d.Keep(ctx, t, img, nil)
		d.Unpack(ctx, t, img, "first")
		if _, err := d.Images.Create(ctx, images.Image{Name: "registry.example/" + name + ":1", Target: img.Manifest}); err != nil {
			t.Fatal(err)
		}
		done()
		d.images = append(d.images, img)
	}
	loaded, err := d.load(d.ctx)
	noError(t, err)
	noError(t, d.adopter.adoptAll(d.ctx, loaded.unkeyed, loaded.have))
	return d
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check runs a deep check without a rate limit and returns the problems, without keys that are unverified.
func (d *deepNode) check(t *testing.T) []string {
	t.Helper()
	report, err := d.DeepCheck(d.ctx, health.DeepOptions{})
	noError(t, err)
	var problems []string
	for _, f := range report.Findings {
		if f.Kind != health.Unverified {
			problems = append(problems, f.Subject+": "+f.Problem)
		}
	}
	return problems
}

func (d *deepNode) flip(t *testing.T, dgst digest.Digest) {
	t.Helper()
	b, err := os.ReadFile(d.File(dgst))
	noError(t, err)
	b[len(b)/2] ^= 1
	noError(t, os.Chmod(d.File(dgst), 0o600))
	noError(t, os.WriteFile(d.File(dgst), b, 0o600))
}

// TestDeepCheckReadsAll checks that a deep check reads every blob of every key once, reports its progress, and leaves
// no leases or snapshots.
func TestDeepCheckReadsAll(t *testing.T) {
	d := newDeepNode(t)
	var all []health.DeepProgress
	report, err := d.DeepCheck(d.ctx, health.DeepOptions{Progress: func(p health.DeepProgress) { all = append(all, p) }})
	if err != nil || len(report.Findings) > 0 || report.Checked != 2 {
		t.Fatalf("got report %+v, %v, want 2 checked keys and no findings", report, err)
	}
	last := all[len(all)-1]
	if want := (health.DeepProgress{Blobs: 6, BlobsTotal: 6, Bytes: last.BytesTotal, BytesTotal: last.BytesTotal, Snapshots: 2, SnapshotsTotal: 2}); last != want {
		t.Errorf("got final progress %+v, want %+v", last, want)
	}
	if !slices.IsSortedFunc(all, func(a, b health.DeepProgress) int { return int(a.Bytes - b.Bytes) }) {
		t.Errorf("progress decreases: %+v", all)
	}
	d.wantNothingLeft(t)
}

// wantNothingLeft checks that no leases are left, and only the snapshots of images.
func (d *deepNode) wantNothingLeft(t *testing.T) {
	t.Helper()
	d.WantNoLease(t)
	noError(t, d.Snapshotter("first").Walk(d.ctx, func(_ context.Context, i snapshots.Info) error {
		if i.Kind != snapshots.KindCommitted {
			t.Errorf("remaining snapshot: %s", i.Name)
		}
		return nil
	}))
}

// TestDeepCheckFindsAlteredBytes checks that a deep check finds a flipped bit in any blob, which a check does not.
func TestDeepCheckFindsAlteredBytes(t *testing.T) {
	for what, of := range map[string]func(ctdtest.Image) digest.Digest{
		"manifest":      func(i ctdtest.Image) digest.Digest { return i.Manifest.Digest },
		"configuration": func(i ctdtest.Image) digest.Digest { return i.Config.Digest },
		"layer":         func(i ctdtest.Image) digest.Digest { return i.Layer.Digest },
	} {
		t.Run(what, func(t *testing.T) {
			d := newDeepNode(t)
			d.flip(t, of(d.images[1]))
			if r, err := d.Check(d.ctx, nil); err != nil || len(r.Findings) > 0 {
				t.Errorf("check: got findings %+v, %v, want none", r.Findings, err)
			}
			problems := d.check(t)
			if len(problems) != 1 || !strings.HasPrefix(problems[0], "registry.example/b:1 ") || !strings.Contains(problems[0], of(d.images[1]).String()) || !strings.Contains(problems[0], "does not match its digest") {
				t.Errorf("deep check: got problems %q, want only the %s of registry.example/b:1", problems, what)
			}
		})
	}
}

// TestDeepCheckVerifiesDamageAgain checks that damage that is repaired during a deep check is not reported.
func TestDeepCheckVerifiesDamageAgain(t *testing.T) {
	d := newDeepNode(t)
	layer := d.images[0].Layer.Digest
	d.flip(t, layer)
	repair := sync.OnceFunc(func() { d.flip(t, layer) })
	report, err := d.DeepCheck(d.ctx, health.DeepOptions{Progress: func(p health.DeepProgress) {
		if p.Blobs == p.BlobsTotal && p.Snapshots == 1 {
			repair()
		}
	}})
	if err != nil || report.Differences() > 0 {
		t.Errorf("got findings %+v, %v, want no difference", report.Findings, err)
	}
}

// retainOnly retains an image by a pin, and removes its keys.
func (d *deepNode) retainOnly(t *testing.T, img ctdtest.Image) {
	t.Helper()
	l, err := d.Leases.Create(d.ctx, leases.WithID("kept"), leases.WithLabels(map[string]string{
		imagepin.LeaseLabel: "retain", imagepin.LabelPrefix + "retain.root": img.Manifest.Digest.String(),
	}))
	noError(t, err)
	for _, desc := range []digest.Digest{img.Manifest.Digest, img.Config.Digest, img.Layer.Digest} {
		noError(t, d.Leases.AddResource(d.ctx, l, leases.Resource{ID: desc.String(), Type: "content"}))
	}
	for _, i := range d.store.Images() {
		if i.ID == img.Config.Digest {
			_, err := d.store.Remove(d.ctx, i.Entries[0].Key)
			noError(t, err)
		}
	}
}

// TestDeepCheckOfRetained checks that a deep check also reads content that only a pin retains.
func TestDeepCheckOfRetained(t *testing.T) {
	d := newDeepNode(t)
	img := d.images[0]
	d.retainOnly(t, img)
	d.flip(t, img.Layer.Digest)
	problems := d.check(t)
	if len(problems) != 1 || !strings.HasPrefix(problems[0], img.Layer.Digest.String()+": a pin retains it") {
		t.Errorf("got problems %q, want only the retained layer", problems)
	}
}

// TestUnreadableContent checks that checks report a file that cannot be opened, of a layer that no key needs and of
// content that only a pin retains, and that a repair does not replace it.
func TestUnreadableContent(t *testing.T) {
	for what, subject := range map[string]func(d *deepNode, of ctdtest.Image) string{
		"layer": func(*deepNode, ctdtest.Image) string { return "registry.example/a:1 " },
		"retained": func(d *deepNode, of ctdtest.Image) string {
			d.retainOnly(t, of)
			return of.Layer.Digest.String()
		},
	} {
		t.Run(what, func(t *testing.T) {
			d := newDeepNode(t)
			img := d.images[0]
			prefix := subject(d, img)
			file := d.File(img.Layer.Digest)
			noError(t, os.Rename(file, file+".kept"))
			noError(t, os.Symlink(file, file)) // opening it fails with ELOOP
			want := func(n int) {
				t.Helper()
				for name, check := range d.checks() {
					report, err := check()
					noError(t, err)
					// The files of the image cannot be compared with a layer that cannot be read.
					report.Findings = slices.DeleteFunc(report.Findings, func(f health.Finding) bool { return f.Kind == health.Unverified })
					if len(report.Findings) != n {
						t.Errorf("%s: got findings %+v, want %d", name, report.Findings, n)
					}
					for _, f := range report.Findings {
						if !strings.HasPrefix(f.Subject, prefix) || !strings.Contains(f.Problem, "cannot be read: ") || f.RepairHint() != "wait until it can be read" {
							t.Errorf("%s: got finding %+v, want one about %s", name, f, prefix)
						}
						if done, err := d.Repair(d.ctx, f); err != nil || done != Ignored {
							t.Errorf("%s: repair: got %q, %v, want %q", name, done, err, Ignored)
						}
					}
				}
			}
			want(1)
			noError(t, os.Rename(file+".kept", file))
			want(0)
		})
	}
}

// checks are the checks by name.
func (d *deepNode) checks() map[string]func() (health.Report, error) {
	return map[string]func() (health.Report, error){
		"check":      func() (health.Report, error) { return d.Check(d.ctx, nil) },
		"deep check": func() (health.Report, error) { return d.DeepCheck(d.ctx, health.DeepOptions{}) },
	}
}

// TestCheckOfRetained checks that a check finds content without a file that only a pin retains.
func TestCheckOfRetained(t *testing.T) {
	d := newDeepNode(t)
	img := d.images[0]
	d.retainOnly(t, img)
	noError(t, os.Remove(d.File(img.Config.Digest)))
	for name, check := range d.checks() {
		report, err := check()
		noError(t, err)
		if len(report.Findings) != 1 || report.Findings[0].Loss.Blob != img.Config.Digest || report.Findings[0].Kind != health.DamagedBlob {
			t.Errorf("%s: got findings %+v, want one about %s", name, report.Findings, img.Config.Digest)
		}
	}
}

// TestDeepCheckOfSnapshots checks that a deep check finds a snapshot without its directory, and that
// RemoveUnusable removes the snapshot unless a container uses it.
func TestDeepCheckOfSnapshots(t *testing.T) {
	d := newDeepNode(t)
	img := d.images[0]
	sn := d.Snapshotter("first")
	ctx, done := d.Lease(t)
	mounts, err := sn.Prepare(ctx, "container", img.ChainID.String())
	noError(t, err)
	view, err := sn.View(ctx, "look", img.ChainID.String())
	noError(t, err)
	noError(t, sn.Remove(ctx, "look"))
	d.Collect(t)
	if len(mounts) == 0 || len(view) != 1 || !strings.HasPrefix(view[0].Source, d.Dir) {
		t.Fatalf("unexpected mounts %v, %v", mounts, view)
	}
	noError(t, os.Rename(view[0].Source, filepath.Join(d.Dir, "away")))
	report, err := d.DeepCheck(d.ctx, health.DeepOptions{})
	if err != nil || len(report.Findings) != 1 || !strings.Contains(report.Findings[0].Problem, view[0].Source) {
		t.Fatalf("got findings %+v, %v, want only %s", report.Findings, err, view[0].Source)
	}
	e := d.store.ByID(img.Config.Digest)[0]
	if _, err := d.config.Checker.RemoveUnusable(ctx, e); !errdefs.IsFailedPrecondition(err) || !d.HasSnapshot(t, "first", img.ChainID) {
		t.Errorf("with a container: got %v, want a FailedPrecondition error and the snapshot", err)
	}
	noError(t, sn.Remove(ctx, "container"))
	evicted, err := d.config.Checker.RemoveUnusable(ctx, e)
	if noError(t, err); len(evicted) != 1 || evicted[0].Key != e.Key {
		t.Errorf("evicted %v, want %s", evicted, e.Key)
	}
	if d.HasSnapshot(t, "first", img.ChainID) || !d.HasSnapshot(t, "first", d.images[1].ChainID) {
		t.Error("the snapshot was not removed, or another snapshot was")
	}
	done()
	d.wantNothingLeft(t)
}

// TestDeepCheckCancelled checks that a deep check with a rate limit ends when its context is canceled, and leaves no
// leases or snapshots.
func TestDeepCheckCancelled(t *testing.T) {
	d := newDeepNode(t)
	ctx, cancel := context.WithCancel(d.ctx)
	_, err := d.DeepCheck(ctx, health.DeepOptions{BytesPerSecond: 1, Progress: func(health.DeepProgress) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	d.wantNothingLeft(t)
}
