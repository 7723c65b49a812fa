package reconcile

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/rootfs"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// kinds are snapshotters with a directory for each layer, and with one for all layers.
var kinds = map[string]func(root string) (snapshots.Snapshotter, error){
	"native":    native.NewSnapshotter,
	"overlayfs": func(root string) (snapshots.Snapshotter, error) { return overlay.NewSnapshotter(root) },
}

// filesNode is a deepNode with the images a and b, which share their lowest layer. The others are their own.
type filesNode struct {
	*deepNode
	base   digest.Digest // the chain ID of the lowest layer
	layers map[digest.Digest][]rootfs.Layer
	reads  map[digest.Digest]int // how often each blob was opened
	boot   *fakeBoot             // may be nil
	// damaged gets the keys that are damaged or have to be verified after the boot. It may be nil: they are repaired.
	damaged func(context.Context, ...health.Loss)
	// held keeps the repairs of the next start in queue, which does not run.
	held  bool
	queue *queue
	// replacer may be nil.
	replacer Replacer
}

// layer returns the tar stream of a layer with these files.
func layer(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		noError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(files[name]))}))
		_, err := w.Write([]byte(files[name]))
		noError(t, err)
	}
	noError(t, w.Close())
	return b.Bytes()
}

func newFilesNode(t *testing.T, kind string) *filesNode {
	t.Helper()
	return newFilesNodeOf(t, kinds[kind])
}

func newFilesNodeOf(t *testing.T, open func(root string) (snapshots.Snapshotter, error)) *filesNode {
	t.Helper()
	n := ctdtest.NewOf(t, open, "first")
	runtimes := ctdtest.Runtimes(t, "first")
	d := &filesNode{deepNode: &deepNode{Node: n, ctx: n.Context(t)}, layers: make(map[digest.Digest][]rootfs.Layer), reads: make(map[digest.Digest]int)}
	base := layer(t, map[string]string{"bin/base": "the base of both", "bin/gone": "1"})
	for _, name := range []string{"a", "b"} {
		blobs := ctdtest.Blobs{}
		img, layers := blobs.Layers("linux/amd64", base, layer(t, map[string]string{"bin/" + name: "program " + name, "bin/.wh.gone": ""}), layer(t, map[string]string{"etc/" + name: "x"}))
		ctx, done := d.Lease(t)
		d.Write(ctx, t, blobs)
		d.Keep(ctx, t, img, nil)
		d.Apply(ctx, t, img, layers, "first")
		_, err := d.Images.Create(ctx, images.Image{Name: "registry.example/" + name + ":1", Target: img.Manifest})
		noError(t, err)
		done()
		d.images, d.layers[img.Manifest.Digest], d.base = append(d.images, img), layers, layers[0].Diff.Digest
	}
	var mu sync.Mutex
	n.Content = ctdtest.Content{Store: n.Content, Before: ctdtest.On("ReaderAt", func(blob string) error {
		mu.Lock()
		d.reads[digest.Digest(blob)]++
		mu.Unlock()
		return nil
	})}
	d.start(t, runtimes)
	return d
}

// start starts another reconciler on the node.
func (d *filesNode) start(t *testing.T, runtimes *runtimeplatform.Set) {
	t.Helper()
	config := storeConfig(d.Node, runtimes)
	d.store = store.New(config)
	d.Reconciler = reconcilerOf(d.Node, config, d.store)
	d.config.Maker, d.config.Puller, d.config.Retained = applying{d}, unreachable(), make(syncs, 10)
	if d.boot != nil {
		d.config.Boot, d.unmarked.damaged = d.boot, d.damaged
	}
	d.config.Replacer = d.replacer
	if d.held {
		d.queue = &queue{repairs: d.repairs, keys: make(map[imagepin.Key]losses), more: make(chan struct{}, 1)}
		d.repairs.queues[queueName{snapshotter: "first"}] = d.queue
	}
	loaded, err := d.load(d.ctx)
	noError(t, err)
	d.suspect(loaded.have)
	noError(t, d.adopter.adoptAll(d.ctx, loaded.unkeyed, loaded.have))
	hidden, err := d.unmarked.hide(d.ctx)
	noError(t, err)
	d.unmarked.add(slices.Concat(loaded.unmarked, hidden)...)
	d.suspect(loaded.have)
}

// applying is a maker that unpacks with containerd.
type applying struct{ *filesNode }

func (a applying) WithLease(ctx context.Context, entries []imagepin.Entry, fn func(context.Context) error) error {
	return leasing{node: a.Node, store: a.store, before: new(func())}.WithLease(ctx, entries, fn)
}

func (a applying) Unpack(ctx context.Context, e imagepin.Entry, record func(context.Context, imagepin.Entry) error) error {
	return lease.With(ctx, a.Leases, lease.Pull, func(ctx context.Context) error {
		if err := a.Node.ApplyLayers(ctx, e.ImageID, e.ChainID, a.layers[e.Manifest], "first"); err != nil {
			return err
		}
		return record(ctx, e)
	})
}

// directory returns the directory of the top snapshot of a chain.
func (d *filesNode) directory(t *testing.T, chainID digest.Digest) string {
	t.Helper()
	ctx, done := d.Lease(t)
	defer done()
	mounts, err := d.Snapshotter("first").View(ctx, "look", chainID.String())
	noError(t, err)
	noError(t, d.Snapshotter("first").Remove(ctx, "look"))
	d.Collect(t)
	for _, option := range mounts[0].Options {
		if lower, ok := strings.CutPrefix(option, "lowerdir="); ok {
			dir, _, _ := strings.Cut(lower, ":")
			return dir
		}
	}
	return mounts[0].Source
}

// truncate removes the content of a file in the directory of a snapshot.
func (d *filesNode) truncate(t *testing.T, chainID digest.Digest, name string) {
	t.Helper()
	noError(t, os.Truncate(filepath.Join(d.directory(t, chainID), name), 0))
}

// deep returns the findings of a deep check by key.
func (d *filesNode) deep(t *testing.T) map[string]health.Finding {
	t.Helper()
	report, err := d.DeepCheck(d.ctx, health.DeepOptions{})
	noError(t, err)
	found := make(map[string]health.Finding)
	for _, f := range report.Findings {
		found[f.Loss.Entry.Ref] = f
	}
	return found
}

// wantIntact checks that a deep check finds nothing and leaves nothing.
func (d *filesNode) wantIntact(t *testing.T) {
	t.Helper()
	if found := d.deep(t); len(found) > 0 {
		t.Errorf("got findings %+v, want none", found)
	}
	d.wantNothingLeft(t)
}

const (
	tagA = "registry.example/a:1"
	tagB = "registry.example/b:1"
)

// TestDeepCheckOfFiles truncates a file of an image. A deep check finds it, a repair unpacks the image again, and the other image
// keeps its snapshots.
func TestDeepCheckOfFiles(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			d := newFilesNode(t, kind)
			clear(d.reads)
			d.wantIntact(t)
			// A blob is opened to look at its size, to verify its digest, and to compare files: for an overlay once, and otherwise
			// for each image.
			if want := map[string]int{"overlayfs": 3, "native": 4}[kind]; d.reads[d.base] != want {
				t.Errorf("the layer of both images was opened %d times, want %d", d.reads[d.base], want)
			}
			a, b := d.images[0], d.images[1]
			before, err := d.Snapshotter("first").Stat(d.ctx, b.ChainID.String())
			noError(t, err)

			d.truncate(t, a.ChainID, "etc/a")
			found := d.deep(t)
			f := found[tagA]
			if len(found) != 1 || f.Kind != health.LostKey || f.Problem != `snapshot `+a.ChainID.String()+` differs from its layers: "/etc/a" has 0 bytes instead of 1` {
				t.Fatalf("got findings %+v, want one of %s", found, tagA)
			}
			if report, err := d.Check(d.ctx, nil); err != nil || report.Differences() != 1 {
				t.Errorf("a check after it: got %+v, %v, want what is known", report.Findings, err)
			}
			if done, err := d.Repair(d.ctx, f); done != Unpacked || err != nil {
				t.Errorf("repair: got %q, %v, want %q", done, err, Unpacked)
			}
			d.wantIntact(t)
			if after, err := d.Snapshotter("first").Stat(d.ctx, b.ChainID.String()); err != nil || !after.Created.Equal(before.Created) {
				t.Errorf("snapshot of %s: got %v, %v, want that of before", tagB, after.Created, err)
			}
		})
	}
}

// TestDamagedFilesInUse truncates a file that two images share, and a container uses one of them. Nothing is removed, both keys stay
// damaged, and neither a start nor a new image on the same snapshot believes it. When the container is removed, both are repaired.
func TestDamagedFilesInUse(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			d := newFilesNode(t, kind)
			a, b := d.images[0], d.images[1]
			ctx, done := d.Lease(t)
			_, err := d.Snapshotter("first").Prepare(ctx, "container", b.ChainID.String())
			noError(t, err)
			d.truncate(t, d.base, "bin/base")
			if kind == "native" { // which copies all files into each snapshot
				for _, img := range d.images {
					d.truncate(t, img.ChainID, "bin/base")
				}
			}

			found := d.deep(t)
			for _, ref := range []string{tagA, tagB} {
				f := found[ref]
				if f.Kind != health.LostKey || !strings.Contains(f.Problem, `snapshot `+d.base.String()+` differs from its layers: "/bin/base" has 0 bytes`) {
					t.Fatalf("%s: got finding %+v", ref, f)
				}
				done, err := d.Repair(d.ctx, f)
				if done != Kept || !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "container container uses it") {
					t.Errorf("repair of %s: got %q, %v, want %q", ref, done, err, Kept)
				}
				if now := d.store.ByRef(ref); len(now) > 0 {
					t.Errorf("%s is offered", ref)
				}
			}
			for _, img := range []ctdtest.Image{a, b} {
				if !d.HasSnapshot(t, "first", img.ChainID) {
					t.Error("a snapshot was removed")
				}
			}
			runtimes := d.config.Runtimes()
			d.start(t, runtimes)
			if why, err := d.config.Checker.SnapshotDamage(d.ctx, found[tagA].Loss.Entry); err != nil || !strings.Contains(why, "/bin/base") {
				t.Errorf("after a start: got %q, %v, want the damage", why, err)
			}
			if n := len(d.store.Images()); n > 0 {
				t.Errorf("after a start: %d images are offered", n)
			}

			noError(t, d.Snapshotter("first").Remove(ctx, "container"))
			done()
			found = d.deep(t)
			for _, ref := range []string{tagA, tagB} {
				if done, err := d.Repair(d.ctx, found[ref]); !done.Succeeded() || err != nil {
					t.Errorf("repair of %s: got %q, %v", ref, done, err)
				}
			}
			d.wantIntact(t)
		})
	}
}

// TestRemovedDuringVerification removes a snapshot while its files are verified, as the repair of another key of it does. The key is
// unpacked again.
func TestRemovedDuringVerification(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			d := newFilesNode(t, kind)
			e := d.store.ByRef(tagA)[0]
			views := 0
			removed := ctdtest.Snapshots{Snapshotter: d.Snapshotter("first"), Before: ctdtest.On("View", func(string) error {
				if views++; views == 2 { // the first one looks at the directory
					return d.Snapshotter("first").Remove(d.ctx, e.ChainID.String())
				}
				return nil
			})}
			d.config.Checker = health.New(health.Config{
				Images: d.store, Content: d.Content, Leases: d.Leases, Runtimes: d.config.Runtimes, Snapshotter: func(string) snapshots.Snapshotter { return removed },
			})
			loss := health.Loss{Entry: e, Reason: "it was damaged", Unverified: true}
			if done, err := d.repairs.repairLost(d.ctx, loss); done != Unpacked || err != nil {
				t.Errorf("got %q, %v, want %q", done, err, Unpacked)
			}
			d.wantIntact(t)
		})
	}
}

// TestUnverifiedFiles checks that a key whose layers are not on the node, or damaged, is neither intact nor damaged.
func TestUnverifiedFiles(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			d := newFilesNode(t, kind)
			d.truncate(t, d.images[0].ChainID, "etc/a")
			noError(t, d.Content.Delete(d.ctx, d.images[0].Layer.Digest))
			d.flip(t, d.images[1].Layer.Digest)
			report, err := d.DeepCheck(d.ctx, health.DeepOptions{})
			noError(t, err)
			unverified := make(map[string]string)
			for _, f := range report.Findings {
				if f.Kind == health.Unverified {
					unverified[f.Loss.Entry.Ref] = f.Problem
				} else if f.Kind != health.DamagedBlob {
					t.Errorf("got finding %+v", f)
				}
			}
			if len(unverified) != 2 || !strings.HasSuffix(unverified[tagA], "is not on the node") || !strings.Contains(unverified[tagB], d.images[1].Layer.Digest.String()) {
				t.Errorf("got unverified %q, want both", unverified)
			}
			if n := report.Differences(); n != 1 {
				t.Errorf("got %d differences, want only the damaged layer", n)
			}
			if lost := d.deepLost(t); len(lost) > 0 {
				t.Errorf("a key is lost: %+v", lost)
			}
		})
	}
}

func (d *filesNode) deepLost(t *testing.T) (lost []health.Loss) {
	t.Helper()
	for _, img := range d.store.Images() {
		for _, e := range img.Entries {
			loss, ok, err := d.config.Checker.Verify(d.ctx, e)
			noError(t, err)
			if ok {
				lost = append(lost, loss)
			}
		}
	}
	return lost
}

// TestDeepCheckOfFilesCancelled checks that a check that ends while it compares files leaves nothing.
func TestDeepCheckOfFilesCancelled(t *testing.T) {
	for kind := range kinds {
		d := newFilesNode(t, kind)
		ctx, cancel := context.WithCancel(d.ctx)
		_, err := d.DeepCheck(ctx, health.DeepOptions{Progress: func(p health.DeepProgress) {
			if p.Blobs == p.BlobsTotal && p.Snapshots == 1 {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want %v", kind, err, context.Canceled)
		}
		d.wantNothingLeft(t)
	}
}
