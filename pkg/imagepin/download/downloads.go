package download

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Downloads are the downloads of one pull.
type Downloads struct {
	fetcher remotes.Fetcher
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	all   map[digest.Digest]*download
	ended bool
	err   error // of the first download that failed by itself
}

type key struct{}

// endTimeout is how long the end of a pull waits for downloads that it has canceled.
const endTimeout = 30 * time.Second

// With returns a context for one transfer. In this context, [Store] takes over the downloads of layers from fetcher.
// The caller must call [Downloads.End] after the transfer.
func With(ctx context.Context, fetcher remotes.Fetcher) (context.Context, *Downloads) {
	ctx, cancel := context.WithCancel(ctx)
	d := &Downloads{fetcher: fetcher, ctx: ctx, cancel: cancel, all: make(map[digest.Digest]*download)}
	return context.WithValue(ctx, key{}, d), d
}

func downloadsOf(ctx context.Context) *Downloads {
	d, _ := ctx.Value(key{}).(*Downloads)
	return d
}

// End waits for the downloads of a transfer that returned err. If the transfer failed, it cancels them. It returns the
// error of the first download that failed, or err.
func (d *Downloads) End(err error) error {
	defer d.cancel()
	if err != nil {
		d.cancel()
	}
	d.mu.Lock()
	d.ended = true // the unpacker of a failed transfer does not wait for its fetches
	d.mu.Unlock()
	d.wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	return err
}

// wait waits until no download runs. After a cancellation it waits for a limited time: in containerd 2.2, a fetch in
// parts (concurrent_layer_fetch_buffer) may not end then (core/remotes/docker/fetcher.go).
func (d *Downloads) wait() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.running.Wait()
	}()
	select {
	case <-done:
		return
	case <-d.ctx.Done():
	}
	select {
	case <-done:
	case <-time.After(endTimeout):
		log.G(d.ctx).Warnf("a download has not ended %s after it was canceled", endTimeout)
	}
}

// detach returns a context with the values of a handler's context, which ends with the pull and not with the handler.
func (d *Downloads) detach(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(d.ctx, cancel)
	return ctx
}

// begin starts the download of a layer to w, which it closes. It calls release when the download has ended. ctx is
// detached. begin fails if the transfer has ended.
func (d *Downloads) begin(ctx context.Context, s *Store, w content.Writer, desc ocispec.Descriptor, release func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return context.Canceled
	}
	l := newDownload(s, desc)
	d.all[desc.Digest] = l
	d.running.Go(func() {
		defer release()
		err := l.fetch(ctx, d.fetcher, w)
		own := err != nil && ctx.Err() == nil
		l.end(err)
		if own {
			d.failed(err)
		}
	})
	return nil
}

// failed ends the pull with the error of a download. The transfer sees that error only when it unpacks that layer.
func (d *Downloads) failed(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = err
		d.cancel()
	}
}

// of returns the download of a blob; nil if there is none.
func (d *Downloads) of(blob digest.Digest) *download {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all[blob]
}
