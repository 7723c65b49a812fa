package pull

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
)

const mib = 1 << 20

// countingRegistry is a registry that serves ranges and counts the bytes of blobs that it sends.
type countingRegistry struct {
	blobs ctdtest.Blobs
	root  ocispec.Descriptor
	layer ocispec.Descriptor
	host  string

	mu    sync.Mutex
	sent  int64                     // of the layer
	begun chan struct{}             // has a value when the fault of the layer has begun
	fault func(http.ResponseWriter) // after limit bytes of a response with the layer; nil sends all
	limit int64
	whole bool                     // does not serve ranges
	alter func(data []byte) []byte // of the layer
}

// newCountingRegistry returns a registry of an image with a layer of 4 MiB.
func newCountingRegistry(t *testing.T) *countingRegistry {
	t.Helper()
	data := make([]byte, 4*mib)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data) // never fails
	r := &countingRegistry{blobs: ctdtest.Blobs{}, begun: make(chan struct{}, 1)}
	r.layer = r.blobs.Add(ocispec.MediaTypeImageLayer, data)
	config := r.blobs.AddJSON(ocispec.MediaTypeImageConfig, ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{r.layer.Digest}},
	})
	r.root = r.blobs.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config, Layers: []ocispec.Descriptor{r.layer},
	})
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	r.host = strings.TrimPrefix(s.URL, "http://")
	return r
}

// ServeHTTP implements http.Handler.
func (r *countingRegistry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if !strings.HasSuffix(q.URL.Path, r.layer.Digest.String()) || q.Method != http.MethodGet {
		ctdtest.Registry{Blobs: r.blobs, Root: r.root}.ServeHTTP(w, q)
		return
	}
	r.mu.Lock()
	data, fault, limit, whole, alter := r.blobs[r.layer.Digest], r.fault, r.limit, r.whole, r.alter
	r.mu.Unlock()
	if alter != nil {
		data = alter(data)
	}
	if whole {
		q = q.Clone(q.Context())
		q.Header.Del("Range")
	}
	if fault == nil {
		limit = int64(len(data)) + 1
	}
	c := &countedWriter{w, r, limit}
	http.ServeContent(c, q, "", time.Time{}, bytes.NewReader(data))
	if c.left == 0 {
		_ = http.NewResponseController(w).Flush()
		select {
		case r.begun <- struct{}{}:
		default: // nobody waits
		}
		fault(w)
	}
}

// countedWriter counts what it sends of a layer, up to a limit.
type countedWriter struct {
	http.ResponseWriter
	registry *countingRegistry
	left     int64
}

func (w *countedWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p[:min(int64(len(p)), w.left)])
	w.left -= int64(n)
	w.registry.mu.Lock()
	w.registry.sent += int64(n)
	w.registry.mu.Unlock()
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

// Unwrap implements the interface of http.ResponseController.
func (w *countedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// failAfter lets each response with the layer end with a fault after some bytes.
func (r *countingRegistry) failAfter(limit int64, fault func(http.ResponseWriter)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault, r.limit = fault, limit
}

// since returns how many bytes of the layer were sent since the last call.
func (r *countingRegistry) since() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := r.sent
	r.sent = 0
	return sent
}

// resumed returns what failed pulls have fetched.
func (n *pullingNode) resumed(t *testing.T) lease.Kept {
	t.Helper()
	kept, err := lease.NewResumes(n.Leases, n.Content).Kept(n.ctx)
	noError(t, err)
	return kept
}

// broken ends a connection.
func broken(http.ResponseWriter) { panic(http.ErrAbortHandler) }

// interruptions are ways in which a pull fails after 3 of the 4 MiB of a layer.
var interruptions = map[string]func(t *testing.T, n *pullingNode, r *countingRegistry, ref string) error{
	"canceled": func(t *testing.T, n *pullingNode, r *countingRegistry, ref string) error {
		hang := make(chan struct{})
		t.Cleanup(func() { close(hang) })
		r.failAfter(3*mib, func(http.ResponseWriter) { <-hang })
		ctx, cancel := context.WithCancel(n.ctx)
		defer cancel()
		failed := make(chan error, 1)
		go func() { failed <- n.pull(ctx, ref, "first") }()
		<-r.begun
		for { // until the node has received it
			all, err := n.Content.ListStatuses(n.ctx)
			noError(t, err)
			if slices.ContainsFunc(all, func(s content.Status) bool { return s.Offset == 3*mib }) {
				break
			}
			time.Sleep(time.Millisecond)
		}
		cancel()
		return <-failed
	},
	"connection cut": func(_ *testing.T, n *pullingNode, r *countingRegistry, ref string) error {
		cut := false
		r.failAfter(3*mib, func(http.ResponseWriter) {
			cut = true
			r.failAfter(0, broken)
			broken(nil)
		})
		err := n.pull(n.ctx, ref, "first")
		if !cut {
			return errors.New("the connection was not cut")
		}
		return err
	},
}

// TestFailedPullIsResumed lets a pull fail after 3 of the 4 MiB of a layer. The next one fetches the rest, also for another
// snapshotter. Until then nothing else of the failed pull is on the node, and nothing after it.
func TestFailedPullIsResumed(t *testing.T) {
	for name, interrupt := range interruptions {
		for _, handler := range []string{"first", "second"} {
			t.Run(name+", then "+handler, func(t *testing.T) {
				n, r := newPullingNode(t, Limits{Unpacks: 2}), newCountingRegistry(t)
				ref := r.host + "/team/app:v1"
				if err := interrupt(t, n, r, ref); err == nil {
					t.Fatal("the pull succeeded")
				}
				if got := r.since(); got != 3*mib {
					t.Errorf("sent %d bytes, want %d", got, 3*mib)
				}
				n.Collect(t)
				kept := n.resumed(t)
				if len(kept.Blobs) != 2 || kept.Writes != 1 || kept.Written != 3*mib || time.Until(kept.Expires) < 23*time.Hour {
					t.Errorf("got %+v, want 2 blobs and 3 MiB of the layer, for a day", kept)
				}
				if records := n.Records(t); len(records) > 0 || n.HasSnapshot(t, "first", r.layer.Digest) {
					t.Errorf("the failed pull left %v, or a snapshot", records)
				}
				r.failAfter(0, nil)
				noError(t, n.pull(n.ctx, ref, handler))
				if got := r.since(); got != mib {
					t.Errorf("sent %d bytes, want the other %d", got, mib)
				}
				if kept := n.resumed(t); !kept.Expires.IsZero() {
					t.Errorf("got %+v after the pull, want nothing", kept)
				}
				if !n.HasSnapshot(t, handler, r.layer.Digest) {
					t.Error("the image is not unpacked")
				}
			})
		}
	}
}

// TestResumedWithoutRanges resumes a pull from a registry that does not serve ranges. It is asked for the whole layer.
func TestResumedWithoutRanges(t *testing.T) {
	n, r := newPullingNode(t, Limits{Unpacks: 2}), newCountingRegistry(t)
	ref := r.host + "/team/app:v1"
	if err := interruptions["canceled"](t, n, r, ref); err == nil {
		t.Fatal("the pull succeeded")
	}
	r.since()
	r.whole = true
	r.failAfter(0, nil)
	noError(t, n.pull(n.ctx, ref, "first"))
	if got := r.since(); got != 4*mib {
		t.Errorf("sent %d bytes, want %d", got, 4*mib)
	}
}

// TestBadRegistryDoesNotBeginTheBlobOfAnother lets a registry send wrong bytes of a layer and stop. The pull of the layer from another
// registry, and from another repository, begins with its first byte. The registry's own pull is repeated once, from the first byte.
func TestBadRegistryDoesNotBeginTheBlobOfAnother(t *testing.T) {
	n, bad, good := newPullingNode(t, Limits{Unpacks: 2}), newCountingRegistry(t), newCountingRegistry(t)
	bad.alter = func(data []byte) []byte { return make([]byte, len(data)) }
	if err := interruptions["canceled"](t, n, bad, bad.host+"/team/app:v1"); err == nil {
		t.Fatal("the pull succeeded")
	}
	if kept := n.resumed(t); kept.Writes != 1 {
		t.Fatalf("got %+v, want a write", kept)
	}
	bad.since()
	bad.alter = nil
	bad.failAfter(0, nil)
	noError(t, n.pull(n.ctx, bad.host+"/team/app:v1", "first"))
	if got := bad.since(); got != mib+4*mib {
		t.Errorf("the bad registry sent %d bytes, want the rest, and all of the layer", got)
	}
	m := newPullingNode(t, Limits{Unpacks: 2})
	bad.alter = func(data []byte) []byte { return make([]byte, len(data)) }
	if err := interruptions["canceled"](t, m, bad, bad.host+"/team/app:v1"); err == nil {
		t.Fatal("the pull succeeded")
	}
	noError(t, m.pull(m.ctx, good.host+"/team/app:v1", "first"))
	if got := good.since(); got != 4*mib {
		t.Errorf("the good registry sent %d bytes, want all of the layer", got)
	}
}

// TestFullDiskFreesFailedPulls lets a file system be full as long as something of a failed pull is kept, or always. A pull frees it
// and is tried again; if it fails then, nothing is kept.
func TestFullDiskFreesFailedPulls(t *testing.T) {
	for name, always := range map[string]bool{"until it is freed": false, "always": true} {
		t.Run(name, func(t *testing.T) {
			n, r, other := newPullingNode(t, Limits{Unpacks: 2}), newCountingRegistry(t), newDrippingRegistry(t)
			if err := interruptions["canceled"](t, n, r, r.host+"/team/app:v1"); err == nil {
				t.Fatal("the pull succeeded")
			}
			n.unpack = func() error {
				kept, err := lease.NewResumes(n.Leases, n.Content).Kept(n.ctx)
				if err == nil && (always || !kept.Expires.IsZero()) {
					err = syscall.ENOSPC
				}
				return err
			}
			blobs := ctdtest.Blobs{}
			app, _ := imageOf(blobs, "app")
			err := n.pull(n.ctx, other.serve("team/app", blobs, app), "first")
			if (err != nil) != always {
				t.Errorf("got %v", err)
			}
			if kept := n.resumed(t); !kept.Expires.IsZero() {
				t.Errorf("got %+v, want nothing", kept)
			}
		})
	}
}

// TestNothingIsKeptOfWrongContent lets a registry send a layer that is not the one of the manifest. Nothing is kept.
func TestNothingIsKeptOfWrongContent(t *testing.T) {
	n, r := newPullingNode(t, Limits{Unpacks: 2}), newCountingRegistry(t)
	r.alter = func(data []byte) []byte { return make([]byte, len(data)) }
	if err := n.pull(n.ctx, r.host+"/team/app:v1", "first"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v, want an error of the content", err)
	}
	if kept := n.resumed(t); !kept.Expires.IsZero() {
		t.Errorf("got %+v, want nothing", kept)
	}
	if n.Collect(t); n.HasBlob(t, r.root.Digest) {
		t.Error("the manifest is kept")
	}
}

// TestKeeps checks which errors leave content for the next pull.
func TestKeeps(t *testing.T) {
	known := func(reason imagepin.Reason, class error) error { return &imagepin.Error{Reason: reason, Class: class} }
	for _, c := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("%w: %w", errStalled, context.Canceled), true},
		{RegistryError{io.ErrUnexpectedEOF}, true},
		{RegistryError{syscall.ECONNRESET}, true},
		{RegistryError{known(imagepin.CannotPullImage, errdefs.ErrUnavailable)}, true},
		{errdefs.ErrUnavailable, true},
		{syscall.EMFILE, true},
		{errors.New("a snapshotter does not answer"), true},
		{syscall.ENAMETOOLONG, false},
		{io.ErrUnexpectedEOF, false}, // of the layer
		{errWrongContent, false},
		{syscall.ENOSPC, false},
		{errRemoved, false}, // it is tried again
		{RegistryError{errdefs.ErrNotFound}, false},
		{RegistryError{known(imagepin.PullAccessDenied, errdefs.ErrPermissionDenied)}, false},
		{known(imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition), false},
		{known(imagepin.ContentDamaged, errdefs.ErrDataLoss), false},
		{known(imagepin.ImageVerificationFailed, errdefs.ErrPermissionDenied), false},
		{known(imagepin.PinnedDigestGone, errdefs.ErrNotFound), false},
		{known(imagepin.RetainLimitReached, errdefs.ErrResourceExhausted), false},
	} {
		if got := keeps(c.err); got != c.want {
			t.Errorf("%v: got %t", c.err, got)
		}
	}
}
