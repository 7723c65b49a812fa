package pull

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// addLyingMirror puts a mirror before the registry of the image, which sends other content of the right length. It returns
// the number of its requests.
func (d *damaged) addLyingMirror(t *testing.T) *atomic.Int32 {
	t.Helper()
	var requests atomic.Int32
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		blob := digest.Digest(r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])
		d.mu.Lock()
		defer d.mu.Unlock()
		_, _ = w.Write(make([]byte, len(d.blobs[blob])))
	}))
	t.Cleanup(mirror.Close)
	root, host := t.TempDir(), reference.Domain(d.named(t))
	noError(t, os.Mkdir(filepath.Join(root, host), 0o755))
	hosts := fmt.Sprintf("server = \"http://%s\"\n[host.%q]\n  capabilities = [\"pull\"]\n", host, mirror.URL)
	noError(t, os.WriteFile(filepath.Join(root, host, "hosts.toml"), []byte(hosts), 0o600))
	prover, err := resolve.NewProver([]byte(strings.Repeat("k", 32)))
	noError(t, err)
	d.config.Sessions = resolve.New(resolve.Config{Prover: prover, Registry: resolve.RegistryConfig{ConfigPath: []string{root}}})
	d.maker = New(d.config)
	return &requests
}

// TestWrongContentOfAMirror fetches content whose digest is wrong at a mirror. Each way to fetch a blob continues with the
// registry.
func TestWrongContentOfAMirror(t *testing.T) {
	for _, part := range []string{"index", "manifest", "configuration", "layer"} {
		t.Run("repair of the "+part, func(t *testing.T) {
			d := newDamaged(t)
			desc, requests := d.parts()[part], d.addLyingMirror(t)
			faults["one bit flipped"](t, d.File(desc.Digest))
			noError(t, d.maker.RepairBlob(d.ctx, d.entry, desc.Digest))
			if m, o := requests.Load(), d.requestCount(); m != 1 || o != 1 {
				t.Errorf("got %d requests to the mirror and %d to the registry, want 1 and 1", m, o)
			}
			d.checkIntact(t)
		})
	}
	t.Run("fetch", func(t *testing.T) {
		d := newDamaged(t)
		requests := d.addLyingMirror(t)
		other := d.blobs.Image("linux/amd64", "other", nil)
		ctx, done := d.Lease(t)
		defer done()
		src := d.sourceFor(ctx, d.named(t))
		noError(t, d.maker.unpacker.fetcher.fetchBlob(ctx, src, other.Config))
		noError(t, blobs.Verify(ctx, d.Content, other.Config.Digest, other.Config.Size, nil))
		if m, o := requests.Load(), d.requestCount(); m != 1 || o != 1 {
			t.Errorf("got %d requests to the mirror and %d to the registry, want 1 and 1", m, o)
		}
	})
	t.Run("content of another registry", func(t *testing.T) {
		d := newDamaged(t)
		requests := d.addLyingMirror(t)
		ref, err := reference.WithTag(reference.TrimNamed(d.named(t)), "other")
		noError(t, err)
		src := d.sourceFor(d.ctx, ref)
		f, err := src.Fetcher(d.ctx, src.name)
		noError(t, err)
		noError(t, d.maker.unpacker.fetcher.vouching.vouch(d.ctx, src, f, d.img.Config))
		if m, o := requests.Load(), d.requestCount(); m != 1 || o != 1 {
			t.Errorf("got %d requests to the mirror and %d to the registry, want 1 and 1", m, o)
		}
	})
	t.Run("transfer", func(t *testing.T) {
		d := newDamaged(t)
		requests := d.addLyingMirror(t)
		other := d.blobs.Image("linux/amd64", "other", nil)
		ctx, done := d.Lease(t)
		defer done()
		src, u := d.sourceFor(ctx, d.named(t)), d.maker.unpacker
		runs := 0
		run := func() error {
			runs++
			from, err := src.Fetcher(ctx, src.name)
			noError(t, err)
			return remotes.Fetch(ctx, src.ingests(d.Content), from, other.Layer)
		}
		noError(t, u.runOtherwise(ctx, src, run(), run))
		noError(t, blobs.Verify(ctx, d.Content, other.Layer.Digest, other.Layer.Size, nil))
		if m, o := requests.Load(), d.requestCount(); m != 1 || o != 1 || runs != 2 {
			t.Errorf("got %d requests to the mirror and %d to the registry in %d runs, want 1, 1 and 2", m, o, runs)
		}
	})
}

// TestWrongContentOfTheOnlyHost does not repeat a fetch of wrong content if there is no other way.
func TestWrongContentOfTheOnlyHost(t *testing.T) {
	d := newDamaged(t)
	ctx, done := d.Lease(t)
	defer done()
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromString("other"), Size: 5}
	d.serve(map[digest.Digest][]byte{desc.Digest: []byte("wrong")}, nil)
	err := d.maker.unpacker.fetcher.fetchBlob(ctx, d.sourceFor(ctx, d.named(t)), desc)
	if !errdefs.IsFailedPrecondition(err) || wrongBlob(err) != desc.Digest || d.requestCount() != 1 {
		t.Errorf("got %v after %d requests, want the error of wrong content after 1", err, d.requestCount())
	}
}
