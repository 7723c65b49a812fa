package pull

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
)

// enough bounds calls that must not wait for a registry. It passes only if the test fails.
const enough = 10 * time.Second

// newStranger returns a reference in a registry that the image on the node is not from.
func newStranger(t *testing.T, h http.HandlerFunc) reference.Named {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	ref, err := imagepin.ParseReference(strings.TrimPrefix(s.URL, "http://") + "/stranger/app:1")
	noError(t, err)
	return ref
}

// sourceFor returns the source of a pull of the node's image under ref.
func (d *damaged) sourceFor(ctx context.Context, ref reference.Named) *source {
	j := Job{Verdict: decide.Verdict{Ref: ref, Root: d.index}}
	return d.maker.unpacker.fetcher.sourceOf(ctx, j, func(error) {})
}

// TestSlowStrangerBlocksOnlyItself names content that is on the node under a registry that begins to send it and does
// not end. Pulls and repairs of the image that need the same content must not wait for that registry.
func TestSlowStrangerBlocksOnlyItself(t *testing.T) {
	d := newDamaged(t)
	fetcher := d.maker.unpacker.fetcher
	for name, test := range map[string]struct {
		desc ocispec.Descriptor
		pull func(context.Context, *source) error
	}{
		"index": {d.index, func(ctx context.Context, src *source) error { return fetcher.fetchBlob(ctx, src, d.index) }},
		"image before its transfer": {d.img.Manifest, func(ctx context.Context, src *source) error {
			_, err := fetcher.vouching.vouchPresent(ctx, src, d.img.Manifest)
			return err
		}},
		"image after its transfer": {d.img.Manifest, func(ctx context.Context, src *source) error {
			return fetcher.vouching.vouchImage(ctx, src, d.img.Manifest)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			begun := make(chan struct{})
			stranger := newStranger(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = w.Write([]byte("{"))
				_ = http.NewResponseController(w).Flush()
				close(begun)
				<-r.Context().Done()
			})
			slow, stop := context.WithCancel(d.ctx)
			ended := make(chan error, 1)
			go func() { ended <- test.pull(slow, d.sourceFor(slow, stranger)) }()
			defer func() {
				stop()
				if err := <-ended; err == nil {
					t.Error("the stranger's pull succeeded without the content")
				}
			}()
			<-begun
			ctx, cancel := context.WithTimeout(d.ctx, enough)
			defer cancel()
			src := d.sourceFor(ctx, d.named(t))
			if err := fetcher.fetchBlob(ctx, src, test.desc); err != nil {
				t.Errorf("a pull of the image: %v", err)
			}
			if err := d.maker.RepairBlob(ctx, d.entry, test.desc.Digest); err != nil {
				t.Errorf("a repair of the image: %v", err)
			}
		})
	}
}

// TestSlowStrangerRepairsForItself damages a configuration, and begins to fetch it from a registry that does not go on. The
// image's own registry repairs it meanwhile. When the other one has sent it, nothing is left to do.
func TestSlowStrangerRepairsForItself(t *testing.T) {
	d := newDamaged(t)
	faults["one bit flipped"](t, d.File(d.img.Config.Digest))
	begun, open := make(chan struct{}), make(chan struct{})
	stranger := newStranger(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(d.blobs[d.img.Config.Digest][:1])
		_ = http.NewResponseController(w).Flush()
		close(begun)
		select {
		case <-open:
			_, _ = w.Write(d.blobs[d.img.Config.Digest][1:])
		case <-r.Context().Done():
		}
	})
	leased, done := d.Lease(t)
	ended := make(chan error, 1)
	go func() {
		_, err := d.maker.unpacker.fetcher.damage.verify(leased, d.sourceFor(leased, stranger), d.img.Config)
		ended <- err
	}()
	<-begun
	ctx, cancel := context.WithTimeout(d.ctx, enough)
	defer cancel()
	if err := d.maker.RepairBlob(ctx, d.entry, d.img.Config.Digest); err != nil {
		t.Errorf("a repair of the image: %v", err)
	}
	close(open)
	noError(t, <-ended)
	done()
	d.checkIntact(t)
}

// TestStrangerNamesWrongSize names content that is on the node with another size than it has. That is an error of the
// descriptor. The content is not damaged, and no registry is asked for it.
func TestStrangerNamesWrongSize(t *testing.T) {
	d := newDamaged(t)
	stranger := newStranger(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("unexpected request %s", r.URL) })
	for part, desc := range d.parts() {
		for _, size := range []int64{-1, 1, desc.Size - 1, desc.Size + 1, 1 << 50} {
			named := desc
			named.Size = size
			err := d.maker.unpacker.fetcher.fetchMissing(d.ctx, d.sourceFor(d.ctx, stranger), nil, named)
			var e *imagepin.Error
			if !errors.As(err, &e) || e.Reason != imagepin.ContentCorrupt || !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s with size %d: got %v, want reason ContentCorrupt", part, size, err)
			}
		}
	}
	d.checkIntact(t)
}

// TestStrangerSendsTooMuch checks that content from a registry is read up to its size only.
func TestStrangerSendsTooMuch(t *testing.T) {
	d := newDamaged(t)
	stranger := newStranger(t, func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				return
			}
		}
	})
	ctx, cancel := context.WithTimeout(d.ctx, enough)
	defer cancel()
	if err := d.maker.unpacker.fetcher.fetchBlob(ctx, d.sourceFor(ctx, stranger), d.index); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v, want a FailedPrecondition error", err)
	}
}

// TestRemovedWhileStrangerServes removes content while another registry is asked for it. The content must be on the
// node when that pull continues, from that registry, which is asked twice. Without the removal it is asked once.
func TestRemovedWhileStrangerServes(t *testing.T) {
	for name, want := range map[string]int{"removed": 2, "not removed": 1} {
		t.Run(name, func(t *testing.T) {
			d := newDamaged(t)
			var requests atomic.Int32
			stranger := newStranger(t, func(w http.ResponseWriter, _ *http.Request) {
				if requests.Add(1) == 1 && name == "removed" {
					unlock, err := d.config.Locks.replace(d.ctx, d.index.Digest) // as a replacement does
					if err == nil {
						err = d.Content.Delete(d.ctx, d.index.Digest)
						unlock()
					}
					if err != nil {
						t.Error(err)
					}
					d.Collect(t)
				}
				_, _ = w.Write(d.blobs[d.index.Digest])
			})
			ctx, cancel := context.WithTimeout(d.ctx, enough)
			defer cancel()
			noError(t, d.maker.unpacker.fetcher.fetchBlob(ctx, d.sourceFor(ctx, stranger), d.index))
			if _, err := d.Content.Info(d.ctx, d.index.Digest); err != nil {
				t.Errorf("after the pull: %v", err)
			}
			if n := int(requests.Load()); n != want {
				t.Errorf("got %d requests, want %d", n, want)
			}
		})
	}
}

// TestPartIsMissingWhileReplaced removes the record of a manifest or a configuration for a moment, as a replacement
// does. A transfer of a stranger's image may then begin, but it must not end without a request for that part.
func TestPartIsMissingWhileReplaced(t *testing.T) {
	for _, part := range []string{"manifest", "configuration"} {
		d := newDamaged(t)
		stranger := newStranger(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(d.blobs[digest.Digest(r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])])
		})
		noError(t, d.Content.Delete(d.ctx, d.parts()[part].Digest))
		vouching, src := d.maker.unpacker.fetcher.vouching, d.sourceFor(d.ctx, stranger)
		all, err := vouching.vouchPresent(d.ctx, src, d.img.Manifest)
		if err != nil || all {
			t.Errorf("%s before the transfer: got %v, all parts: %v, want no error and not all", part, err, all)
		}
		err = vouching.vouchImage(d.ctx, src, d.img.Manifest)
		if !errdefs.IsNotFound(err) || !errors.Is(asRemoved(err), errRemoved) {
			t.Errorf("%s after the transfer: got %v, want a NotFound error that is tried again", part, err)
		}
	}
}
