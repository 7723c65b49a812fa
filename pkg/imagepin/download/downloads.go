package download

import (
	"context"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
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
// error of the download that failed first, or err.
func (d *Downloads) End(err error) error {
	defer d.cancel()
	if err != nil {
		d.cancel()
	}
	d.mu.Lock()
	d.ended = true // the unpacker of a failed transfer does not wait for its fetches
	d.mu.Unlock()
	d.running.Wait()
	if d.err != nil {
		return d.err
	}
	return err
}

// begin starts the download of a layer to w, which it closes. It calls release when the download has ended. ctx provides
// values only. begin fails if the transfer has ended.
func (d *Downloads) begin(ctx context.Context, s *Store, w content.Writer, desc ocispec.Descriptor, release func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return context.Canceled
	}
	l := newDownload(s, desc)
	d.all[desc.Digest] = l
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(d.ctx, cancel)
	d.running.Go(func() {
		defer release()
		defer cancel()
		defer stop()
		err := l.fetch(ctx, d.fetcher, w)
		if err != nil && ctx.Err() == nil {
			d.failed(err)
		}
		l.end(err)
	})
	return nil
}

func (d *Downloads) failed(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = err
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
