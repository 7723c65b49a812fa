package pull

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// damaged is a node with one image and a registry that has the image.
type damaged struct {
	*ctdtest.Node
	ctx         context.Context
	maker       *Maker
	config      Config
	store       *store.Store
	storeConfig store.Config
	index       ocispec.Descriptor
	img         ctdtest.Image
	entry       imagepin.Entry

	mu       sync.Mutex
	requests []string
	blobs    ctdtest.Blobs
	// during, if set, runs during each request to the registry.
	during func()
}

// storeGarbage collects garbage through the store, and never asynchronously.
type storeGarbage struct{ *store.Store }

func (g storeGarbage) CollectAsync() {}

func newDamaged(t *testing.T) *damaged {
	t.Helper()
	n := ctdtest.New(t, "first")
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	d := &damaged{Node: n, ctx: log.WithLogger(n.Context(t), logrus.NewEntry(quiet)), blobs: ctdtest.Blobs{}}
	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	runtimes := ctdtest.Runtimes(t, "first")
	prover, err := resolve.NewProver([]byte(strings.Repeat("k", 32)))
	noError(t, err)
	d.storeConfig = store.Config{
		Records: ctdtest.Records{Store: n.Images}, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter, Runtimes: ctdtest.Always(runtimes),
	}
	s := store.New(d.storeConfig)
	resolver, pins := resolve.New(resolve.Config{Prover: prover}), pin.New(pin.Config{})
	proofs := decide.NodeProofs{Prover: resolver, Stores: []decide.ProofStore{s, pins}}
	d.store = s
	d.config = Config{
		Content: n.Content, Leases: n.Leases, Images: s, Runtimes: ctdtest.Always(runtimes), Sessions: resolver, Proofs: proofs,
		Pins:    decide.New(decide.Config{Pins: pins, Images: s, Proofs: proofs, Registry: resolver}),
		Garbage: storeGarbage{s}, Locks: &Locks{}, Settings: ctdtest.Always(&Settings{}),
	}
	d.maker = New(d.config)
	d.pull(t, strings.TrimPrefix(server.URL, "http://")+"/team/app:1")
	return d
}

// pull puts an image on the node as a pull does.
func (d *damaged) pull(t *testing.T, ref string) {
	t.Helper()
	d.img = d.blobs.Image("linux/amd64", "app", nil)
	d.index = d.blobs.Index(d.img.Manifest)
	ctx, done := d.Lease(t)
	d.Write(ctx, t, d.blobs)
	d.Keep(ctx, t, d.img, &d.index)
	d.Unpack(ctx, t, d.img, "first")
	named, err := imagepin.ParseReference(ref)
	noError(t, err)
	d.entry = imagepin.Entry{
		Key:  imagepin.Key{Ref: ref, Target: d.config.Runtimes().Default().Target},
		Root: d.index, Manifest: d.img.Manifest.Digest, ImageID: d.img.Config.Digest, ChainID: d.img.ChainID,
		Source: imagepin.SourcePull, RecordTarget: d.index,
	}
	d.entry.Record, err = store.RecordName(named, d.index.Digest)
	noError(t, err)
	_, err = d.store.Put(ctx, "", d.entry)
	noError(t, err)
	done()
	d.Collect(t)
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ServeHTTP serves blobs by digest, as a registry does.
func (d *damaged) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.during != nil {
		d.during()
	}
	d.requests = append(d.requests, r.Method)
	data, ok := d.blobs[digest.Digest(r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	_, _ = w.Write(data)
}

// serve sets the blobs of the registry and the function that runs during requests.
func (d *damaged) serve(all ctdtest.Blobs, during func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.blobs, d.during = all, during
}

func (d *damaged) requestCount() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.requests)
}

// faults are the ways to damage the file of a blob.
var faults = map[string]func(t *testing.T, path string){
	"gone": func(t *testing.T, path string) { noError(t, os.Remove(path)) },
	"cut": func(t *testing.T, path string) {
		noError(t, os.Chmod(path, 0o600))
		noError(t, os.Truncate(path, 7))
	},
	"one bit flipped": func(t *testing.T, path string) {
		b, err := os.ReadFile(path)
		noError(t, err)
		b[len(b)/2] ^= 4
		noError(t, os.Chmod(path, 0o600))
		noError(t, os.WriteFile(path, b, 0o400))
	},
}

// parts are the blobs of an image.
func (d *damaged) parts() map[string]ocispec.Descriptor {
	return map[string]ocispec.Descriptor{
		"index": d.index, "manifest": d.img.Manifest, "configuration": d.img.Config, "layer": d.img.Layer,
	}
}

// labels returns the labels of a blob.
func (d *damaged) labels(t *testing.T, desc ocispec.Descriptor) map[string]string {
	t.Helper()
	info, err := d.Content.Info(d.ctx, desc.Digest)
	noError(t, err)
	return info.Labels
}

// checkIntact checks that the image is complete after garbage collection, and that no lease is left.
func (d *damaged) checkIntact(t *testing.T) {
	t.Helper()
	d.Collect(t)
	for what, desc := range d.parts() {
		if err := blobs.Verify(d.ctx, d.Content, desc.Digest, desc.Size, nil); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !d.HasSnapshot(t, "first", d.img.ChainID) {
		t.Error("the snapshot is missing")
	}
	if got, ok := d.store.Get(d.entry.Key); !ok || got.Manifest != d.entry.Manifest {
		t.Errorf("the key has another manifest or is missing: %+v, %v", got, ok)
	}
	d.WantNoLease(t)
}

// TestReplaceDamagedBlob checks that every blob of an image is replaced after any damage, even if garbage is collected
// meanwhile, and keeps its labels.
func TestReplaceDamagedBlob(t *testing.T) {
	for name, damage := range faults {
		for _, part := range []string{"index", "manifest", "configuration", "layer"} {
			t.Run(part+" "+name, func(t *testing.T) {
				d := newDamaged(t)
				desc := d.parts()[part]
				before := d.labels(t, desc)
				d.serve(d.blobs, func() { d.Collect(t) })
				damage(t, d.File(desc.Digest))
				noError(t, d.maker.RepairBlob(d.ctx, d.entry, desc.Digest))
				if after := d.labels(t, desc); !maps.Equal(after, before) {
					t.Errorf("got labels %v, want %v", after, before)
				}
				if n := d.requestCount(); n != 1 {
					t.Errorf("got %d requests, want 1", n)
				}
				d.checkIntact(t)
			})
		}
	}
}

// TestReplaceSkipsIntactBlobs checks that intact content is neither fetched nor written.
func TestReplaceSkipsIntactBlobs(t *testing.T) {
	d := newDamaged(t)
	before := make(map[string]os.FileInfo)
	for part, desc := range d.parts() {
		info, err := os.Stat(d.File(desc.Digest))
		noError(t, err)
		before[part] = info
		noError(t, d.maker.RepairBlob(d.ctx, d.entry, desc.Digest))
	}
	for part, desc := range d.parts() {
		info, err := os.Stat(d.File(desc.Digest))
		if err != nil || !os.SameFile(info, before[part]) {
			t.Errorf("%s was written: %v", part, err)
		}
	}
	if n := d.requestCount(); n != 0 {
		t.Errorf("got %d requests, want 0", n)
	}
	d.checkIntact(t)
}

// TestReplaceFailsWithoutRegistry checks that, if the registry has no blob or other content, the error reports damage
// on the node and the labels do not change.
func TestReplaceFailsWithoutRegistry(t *testing.T) {
	for name, damage := range faults {
		for answer, wrong := range map[string]func(ctdtest.Blobs, digest.Digest){
			"missing":        func(all ctdtest.Blobs, d digest.Digest) { delete(all, d) },
			"other content":  func(all ctdtest.Blobs, d digest.Digest) { all[d] = []byte(strings.Repeat("x", len(all[d]))) },
			"longer content": func(all ctdtest.Blobs, d digest.Digest) { all[d] = append(slices.Clone(all[d]), 'x') },
		} {
			t.Run(name+", "+answer, func(t *testing.T) {
				d := newDamaged(t)
				config := d.img.Config
				before := d.labels(t, config)
				good := d.blobs
				all := maps.Clone(good)
				wrong(all, config.Digest)
				d.serve(all, nil)
				damage(t, d.File(config.Digest))
				err := d.maker.RepairBlob(d.ctx, d.entry, config.Digest)
				var e *imagepin.Error
				if !errors.As(err, &e) || e.Reason != imagepin.ContentDamaged || !errdefs.IsDataLoss(err) {
					t.Errorf("got %v, want reason ContentDamaged", err)
				}
				if after := d.labels(t, config); !maps.Equal(after, before) {
					t.Errorf("got labels %v, want %v", after, before)
				}
				d.WantNoLease(t)
				d.serve(good, nil)
				noError(t, d.maker.RepairBlob(d.ctx, d.entry, config.Digest))
				d.checkIntact(t)
			})
		}
	}
}

func (d *damaged) named(t *testing.T) reference.Named {
	t.Helper()
	ref, err := imagepin.ParseReference(d.entry.Ref)
	noError(t, err)
	return ref
}

// TestReplaceSharedWithAnotherNamespace checks that damaged content that another containerd namespace also has is not
// replaced, and that this namespace keeps its content.
func TestReplaceSharedWithAnotherNamespace(t *testing.T) {
	d := newDamaged(t)
	other := d.InNamespace(t, "other")
	desc := d.img.Config
	noError(t, content.WriteBlob(other, d.Content, "other", strings.NewReader(string(d.blobs[desc.Digest])), desc,
		content.WithLabels(map[string]string{"containerd.io/gc.root": "theirs"})))
	before := d.labels(t, desc)
	faults["one bit flipped"](t, d.File(desc.Digest))
	err := d.maker.RepairBlob(d.ctx, d.entry, desc.Digest)
	if err == nil || !strings.Contains(err.Error(), "another containerd namespace") {
		t.Errorf("got %v, want an error about another namespace", err)
	}
	if after := d.labels(t, desc); !maps.Equal(after, before) {
		t.Errorf("got labels %v, want %v", after, before)
	}
	d.Collect(t)
	if !d.HasSnapshot(t, "first", d.img.ChainID) {
		t.Error("the snapshot is missing")
	}
	d.WantNoLease(t)
}

// TestReplaceKilled checks that after a kill during a replacement no incomplete key is ready and no content is left.
func TestReplaceKilled(t *testing.T) {
	for name, damage := range faults {
		for _, part := range []string{"index", "manifest", "configuration", "layer"} {
			for _, at := range []string{"delete", "commit"} {
				t.Run(part+" "+name+", killed at "+at, func(t *testing.T) {
					d := newDamaged(t)
					desc := d.parts()[part]
					damage(t, d.File(desc.Digest))
					d.killedAt(t, at, desc)
					d.restarted(t, desc)
				})
			}
		}
	}
}

var errKilled = errors.New("killed")

// killing is a content store that simulates a kill at a write.
type killing struct {
	content.Store
	at   string
	dead *bool
}

func (k killing) Delete(ctx context.Context, d digest.Digest) error {
	if k.at == "delete" || *k.dead {
		*k.dead = true
		return errKilled
	}
	return k.Store.Delete(ctx, d)
}

func (k killing) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	w, err := k.Store.Writer(ctx, opts...)
	return killingWriter{w, k}, err
}

type killingWriter struct {
	content.Writer
	k killing
}

func (w killingWriter) Commit(ctx context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	if w.k.at == "commit" || *w.k.dead {
		*w.k.dead = true
		return errKilled
	}
	return w.Writer.Commit(ctx, size, expected, opts...)
}

// killedAt replaces a blob and stops at a write, without cleanup.
func (d *damaged) killedAt(t *testing.T, at string, desc ocispec.Descriptor) {
	t.Helper()
	ctx, _ := d.Lease(t) // never deleted, as after a kill
	ctx = log.WithLogger(ctx, log.G(d.ctx))
	dead := false
	config := d.config
	config.Content = killing{d.Content, at, &dead}
	p := New(config)
	src := p.unpacker.fetcher.sourceOf(ctx, Job{Verdict: decide.Verdict{Ref: d.named(t)}}, func(error) {})
	if _, err := p.unpacker.fetcher.damage.verify(ctx, src, desc); (err != nil) != dead || dead && !errors.Is(err, errKilled) {
		t.Fatalf("got %v, want %v after a kill (killed: %t)", err, errKilled, dead)
	}
}

// checkerOf returns a checker for the keys of a store.
func checkerOf(s *store.Store, c store.Config) *health.Checker {
	return health.New(health.Config{
		Images: s, Content: c.Content, Leases: c.Leases, Snapshotter: c.Snapshotter, Runtimes: c.Runtimes,
	})
}

// load builds the index as a start does and returns the lost keys.
func load(ctx context.Context, s *store.Store, c store.Config) ([]imagepin.Entry, error) {
	loaded, err := s.Load(ctx, func(ctx context.Context) (func(imagepin.Entry) bool, error) {
		have, err := checkerOf(s, c).Inventory(ctx)
		return func(e imagepin.Entry) bool { return have.Missing(e) == "" }, err
	})
	if err != nil {
		return nil, err
	}
	return loaded.Lost, nil
}

// restarted simulates a restart, and checks that the key is ready with all its content or dropped with all of it.
func (d *damaged) restarted(t *testing.T, desc ocispec.Descriptor) {
	t.Helper()
	all, err := d.Leases.List(d.ctx)
	noError(t, err)
	for _, l := range all {
		noError(t, d.Leases.Delete(d.ctx, l))
	}
	d.Collect(t)
	s := store.New(d.storeConfig)
	lost, err := load(d.ctx, s, d.storeConfig)
	noError(t, err)
	_, ready := s.Get(d.entry.Key)
	if ready == (len(lost) > 0) {
		t.Errorf("the key is both ready and lost, or neither: ready %v, lost %+v", ready, lost)
	}
	for _, e := range lost {
		noError(t, s.Drop(d.ctx, e))
	}
	if !ready {
		d.WantEmpty(t)
		return
	}
	present, err := s.Present(d.ctx, d.entry)
	if err != nil || !present {
		t.Errorf("content of a ready key: present %v, %v", present, err)
	}
	if !d.HasSnapshot(t, "first", d.img.ChainID) {
		t.Error("the snapshot is missing")
	}
	_, err = s.Remove(d.ctx, d.entry.Key)
	noError(t, err)
	d.WantEmpty(t)
}
