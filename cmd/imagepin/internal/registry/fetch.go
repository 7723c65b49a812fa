package registry

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// MaxRead is the maximum size, in bytes, of content that [Client.ReadAll] returns. It is containerd's limit for manifests.
const MaxRead = 8 << 20

// ReadAll returns an index, a manifest or a configuration of at most MaxRead bytes from the repository of repo. It sends
// one GET request, and those that the registry's authentication needs. It verifies the digest, and the size if desc has
// one. It does not use desc.URLs.
func (c *Client) ReadAll(ctx context.Context, repo reference.Named, desc ocispec.Descriptor) ([]byte, error) {
	if desc.Size > MaxRead {
		return nil, corrupt(repo, fmt.Sprintf("%s has %d bytes, at most %d are read", desc.Digest, desc.Size, MaxRead))
	}
	release, err := c.slot(ctx, repo)
	if err != nil {
		return nil, err
	}
	defer release()
	desc.URLs = nil
	data, err := c.readAll(ctx, repo, desc)
	var known *imagepin.Error
	switch {
	case err != nil && errdefs.IsFailedPrecondition(err) && !errors.As(err, &known):
		return nil, corrupt(repo, fmt.Sprintf("%s: %v", desc.Digest, err)) // it has another size
	case err != nil:
		return nil, err
	case len(data) > MaxRead:
		return nil, corrupt(repo, fmt.Sprintf("%s has more than %d bytes", desc.Digest, MaxRead))
	case desc.Size > 0 && int64(len(data)) != desc.Size:
		return nil, corrupt(repo, fmt.Sprintf("%s has %d bytes, want %d", desc.Digest, len(data), desc.Size))
	case desc.Digest.Algorithm().FromBytes(data) != desc.Digest:
		return nil, corrupt(repo, fmt.Sprintf("the registry's answer for %s has the digest %s", desc.Digest, desc.Digest.Algorithm().FromBytes(data)))
	}
	return data, nil
}

// readAll returns at most MaxRead+1 bytes, which are not verified.
func (c *Client) readAll(ctx context.Context, repo reference.Named, desc ocispec.Descriptor) ([]byte, error) {
	rc, err := c.Fetch(ctx, repo, desc, 0)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	return io.ReadAll(io.LimitReader(rc, MaxRead+1))
}

// Fetch returns the content of desc from the repository of repo, from an offset in bytes on. It returns when the first
// byte has arrived. The caller verifies the content and closes the reader. If the connection is interrupted, reading
// continues with a range request. Concurrency is the caller's, Config.Concurrency does not apply.
func (c *Client) Fetch(ctx context.Context, repo reference.Named, desc ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, corrupt(repo, fmt.Sprintf("%q is not a digest", desc.Digest))
	}
	var opened io.ReadCloser
	err := c.waitFor(ctx, repo, func() (err error) {
		opened, err = c.open(ctx, repo, desc, offset)
		return err
	})
	return opened, err
}

// open sends the request.
func (c *Client) open(ctx context.Context, repo reference.Named, desc ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(withoutLog(ctx))
	f, err := c.session(repo).Fetcher(ctx)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	rc, err := f.Fetch(ctx, desc)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	b := &body{ctx: ctx, cancel: cancel, rc: rc, timeout: c.config.Timeout, repo: repo, desc: desc}
	b.buffered = bufio.NewReaderSize(readerFunc(b.read), 64<<10)
	if err := b.start(offset); err != nil {
		_ = b.Close()
		return nil, err
	}
	return b, nil
}

// body is the content of a descriptor.
type body struct {
	ctx      context.Context
	cancel   context.CancelCauseFunc
	rc       io.ReadCloser
	buffered *bufio.Reader
	timeout  time.Duration
	repo     reference.Named
	desc     ocispec.Descriptor
}

// start receives the first byte.
func (b *body) start(offset int64) error {
	if offset != 0 {
		s, ok := b.rc.(io.Seeker)
		if !ok {
			return fmt.Errorf("offset %d: %w", offset, errdefs.ErrNotImplemented)
		}
		if _, err := s.Seek(offset, io.SeekStart); err != nil {
			return err
		}
	}
	if _, err := b.buffered.Peek(1); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

var errStalled = errors.New("stalled")

// read ends the request if it receives nothing in time.
func (b *body) read(p []byte) (int, error) {
	timer := time.AfterFunc(b.timeout, func() { b.cancel(errStalled) })
	defer timer.Stop()
	n, err := b.rc.Read(p)
	if err == nil || err == io.EOF || b.ctx.Err() == nil {
		return n, err
	}
	cause := context.Cause(b.ctx)
	if errors.Is(cause, errStalled) {
		cause = &imagepin.Error{
			Reason: imagepin.PullStalled, Ref: b.repo.Name() + "@" + b.desc.Digest.String(), Class: errdefs.ErrUnavailable,
			Message: fmt.Sprintf("nothing was received for %s", b.timeout), Hint: "Check the network to the registry and its mirrors.",
		}
	}
	return n, cause
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) { return b.buffered.Read(p) }

// Close implements io.Closer.
func (b *body) Close() error {
	b.cancel(nil)
	return b.rc.Close()
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
