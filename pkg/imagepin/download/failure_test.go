package download

import (
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// boundStore is a content store whose writers end with the context of Writer, as those of containerd's proxy plugins do
// (core/content/proxy).
type boundStore struct{ content.Store }

type boundWriter struct {
	content.Writer
	ctx context.Context
}

func (s boundStore) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	w, err := s.Store.Writer(ctx, opts...)
	return &boundWriter{w, ctx}, err
}

func (w *boundWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}

// TestWriterOutlivesItsHandler checks that the writer of a download does not end with the handler that opened it.
func TestWriterOutlivesItsHandler(t *testing.T) {
	n := newNode(t, gzipLayer(t, 3, 100_000))
	n.store = NewStore(boundStore{n.Content}, n.locks, NewWindows(0))
	open := n.gate(1000, nil)
	noError(t, n.fetch())
	open()
	_, err := n.apply()
	noError(t, err)
	noError(t, n.pull.End(nil))
	n.checkStored(t)
}

// TestFailedDownloadEndsThePull checks that a failed download ends the transfer before it unpacks the layer, and leaves
// no record.
func TestFailedDownloadEndsThePull(t *testing.T) {
	n := newNode(t, gzipLayer(t, 3, 100_000))
	open := n.gate(1000, errBroken)
	noError(t, n.fetch())
	open()
	<-n.ctx.Done()
	ctx := context.WithoutCancel(n.ctx)
	if info, err := n.store.Info(ctx, n.layer.desc.Digest); !errdefs.IsNotFound(err) {
		t.Errorf("the layer has a record: %+v, %v", info, err)
	}
	label := content.Info{Digest: n.layer.desc.Digest, Labels: map[string]string{"a": "b"}}
	if _, err := n.store.Update(ctx, label, "labels.a"); !errdefs.IsNotFound(err) {
		t.Errorf("a label of the layer was accepted: %v", err)
	}
	if _, err := n.apply(); !errors.Is(err, errBroken) {
		t.Errorf("Apply failed with %v", err)
	}
	if err := n.pull.End(context.Canceled); !errors.Is(err, errBroken) {
		t.Errorf("the pull failed with %v", err)
	}
	n.checkFree(t)
}

// TestFullDisk checks that a layer that does not fit ends at once, without the rest of its download, also if it is being
// decompressed ahead.
func TestFullDisk(t *testing.T) {
	n := newNode(t, gzipLayer(t, 3, 100_000))
	n.gate(1000, nil) // never opens
	n.applier = NewApplier(n.Content, func(content.Provider) diff.Applier { return fullDisk{} })
	noError(t, n.fetch())
	_, err := n.apply()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Apply failed with %v", err)
	}
	if err := n.pull.End(err); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the pull failed with %v", err)
	}
	n.checkFree(t)
}

type fullDisk struct{}

func (fullDisk) Apply(context.Context, ocispec.Descriptor, []mount.Mount, ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, syscall.ENOSPC
}

// countingProvider counts the readers that are open.
type countingProvider struct {
	content.Provider
	open atomic.Int32
}

func (c *countingProvider) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	r, err := c.Provider.ReaderAt(ctx, desc)
	if err == nil {
		c.open.Add(1)
	}
	return &countedReader{r, c}, err
}

type countedReader struct {
	content.ReaderAt
	of *countingProvider
}

func (r *countedReader) Close() error {
	r.of.open.Add(-1)
	return r.ReaderAt.Close()
}

// TestReadAfterClose checks that a stream processor that still reads a layer after Apply has returned, as the goroutine
// that feeds an external program does, gets an error and opens nothing.
func TestReadAfterClose(t *testing.T) {
	n := newNode(t, gzipLayer(t, 3, 100_000))
	open := n.gate(1000, nil)
	noError(t, n.fetch())
	from := &countingProvider{Provider: n.Content}
	r := newReader(n.ctx, from, n.layer.desc, n.pull.of(n.layer.desc.Digest))
	read := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, r)
		read <- err
	}()
	noError(t, r.Close())
	open()
	if err := <-read; !errors.Is(err, os.ErrClosed) && !errors.Is(err, context.Canceled) {
		t.Errorf("the read failed with %v", err)
	}
	if open := from.open.Load(); open != 0 {
		t.Errorf("%d readers are open", open)
	}
	noError(t, n.pull.End(nil))
}

// TestEndOfAHangingDownload checks that a pull ends although a download that was canceled hangs.
func TestEndOfAHangingDownload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, pull := With(t.Context(), remotes.FetcherFunc(func(context.Context, ocispec.Descriptor) (io.ReadCloser, error) { return nil, nil }))
		hang := make(chan struct{})
		pull.running.Go(func() { <-hang })
		failure := errors.New("another layer cannot be unpacked")
		if err := pull.End(failure); !errors.Is(err, failure) {
			t.Errorf("the pull failed with %v", err)
		}
		close(hang)
	})
}
