package pull

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// source is one image for containerd's transfer service: it is resolved
// already, and fetched in a session that may be opened late or never, because
// most of the content may be here.
type source struct {
	name    string
	ref     reference.Named
	root    ocispec.Descriptor
	session func() (*resolve.Session, error)
	opened  atomic.Bool // the session was
	// trusted says that what is on the node may be used without the registry,
	// see [Puller.trusts].
	trusted bool
	// served is told which blobs, other than layers, the registry has served.
	served  func(digest.Digest)
	options []transfer.ImageResolverOption
}

var (
	_ transfer.ImageFetcher              = (*source)(nil)
	_ transfer.ImageResolverOptionSetter = (*source)(nil)
)

// sourceOf is where the content of a job comes from. end is called where a
// session that was opened makes no progress.
func (p *Puller) sourceOf(ctx context.Context, j job, end context.CancelCauseFunc) *source {
	s := &source{name: j.Ref.String(), ref: j.Ref, trusted: p.trusts(j)}
	s.served = func(d digest.Digest) { p.served.note(j.Ref, d) }
	s.session = sync.OnceValues(func() (*resolve.Session, error) {
		session := j.Session
		if session == nil {
			session = p.Resolver.Session(j.Ref, j.Credential)
		}
		s.opened.Store(true)
		p.endStalled(ctx, session, end)
		return session, nil
	})
	return s
}

// endStalled ends a pull whose session makes no progress.
func (p *Puller) endStalled(ctx context.Context, session *resolve.Session, end context.CancelCauseFunc) {
	if p.ProgressTimeout <= 0 {
		return
	}
	stalled := session.Stalled(ctx, p.ProgressTimeout)
	go func() {
		select {
		case <-stalled:
			end(errStalled)
		case <-ctx.Done():
		}
	}()
}

// Resolve implements transfer.ImageResolver. It sends nothing.
func (s *source) Resolve(context.Context) (string, ocispec.Descriptor, error) {
	return s.name, s.root, nil
}

// SetResolverOptions implements transfer.ImageResolverOptionSetter.
func (s *source) SetResolverOptions(options ...transfer.ImageResolverOption) { s.options = options }

// Fetcher implements transfer.ImageFetcher.
func (s *source) Fetcher(context.Context, string) (transfer.Fetcher, error) {
	open := sync.OnceValues(func() (remotes.Fetcher, error) {
		session, err := s.session()
		if err != nil {
			return nil, err
		}
		session.SetOptions(s.options...)
		return session.Fetcher(context.Background())
	})
	return fetcherFunc(func(ctx context.Context, desc ocispec.Descriptor) (rc io.ReadCloser, err error) {
		defer func() {
			// The transfer service calls from goroutines of its own.
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		failpoint.Reach("pull.fetch")
		f, err := open()
		if err != nil {
			return nil, err
		}
		if rc, err = f.Fetch(ctx, desc); err != nil {
			return nil, fromRegistry{err}
		}
		rc = body{rc}
		if s.served == nil || images.IsLayerType(desc.MediaType) {
			return rc, nil
		}
		return verifying(rc, desc, s.served), nil
	}), nil
}

func (s *source) String() string { return s.name }

type fetcherFunc func(context.Context, ocispec.Descriptor) (io.ReadCloser, error)

func (f fetcherFunc) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	return f(ctx, desc)
}

// destination is one target for containerd's transfer service: a manifest that
// is unpacked in a snapshotter. Records are not its business.
type destination struct {
	runtime       runtimeplatform.Runtime
	discardLayers bool
	manifest      ocispec.Descriptor // as the transfer service leaves it
}

var (
	_ transfer.ImageStorer   = (*destination)(nil)
	_ transfer.ImageFilterer = (*destination)(nil)
	_ transfer.ImageUnpacker = (*destination)(nil)
)

// ImageFilter implements transfer.ImageFilterer: the manifest keeps its
// configuration alive, and its layers unless they are discarded.
func (d *destination) ImageFilter(h images.HandlerFunc, cs content.Store) images.HandlerFunc {
	labels := images.ChildGCLabels
	if d.discardLayers {
		labels = images.ChildGCLabelsFilterLayers
	}
	return images.SetChildrenMappedLabels(cs, h, labels)
}

// UnpackPlatforms implements transfer.ImageUnpacker.
func (d *destination) UnpackPlatforms() []transfer.UnpackConfiguration {
	return []transfer.UnpackConfiguration{{Platform: d.runtime.Spec, Snapshotter: d.runtime.Target.Snapshotter}}
}

// Store implements transfer.ImageStorer. The descriptor differs from what was
// asked for where a Docker manifest had to be converted.
func (d *destination) Store(_ context.Context, desc ocispec.Descriptor, _ images.Store) ([]images.Image, error) {
	d.manifest = desc
	return nil, nil
}

// fetchBlob puts the content of desc into the content store, from the registry
// where it is not there yet. Equal calls at one time fetch once. What is there
// has to be what this registry serves, see [Puller.vouch].
func (p *Puller) fetchBlob(ctx context.Context, src *source, desc ocispec.Descriptor) error {
	unlock, err := p.lockBlob(ctx, desc)
	if err != nil {
		return err
	}
	defer unlock()
	f, err := src.Fetcher(ctx, src.name)
	if err != nil {
		return err
	}
	if err := remotes.Fetch(ctx, p.Content, f, desc); err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("fetch %s: %w", desc.Digest, err)
	}
	// What was here already may be damaged, with or without a record.
	if _, err := p.verifyLocked(ctx, src, desc); err != nil {
		return err
	}
	return p.vouch(ctx, src, f, desc)
}

// lockBlob makes the caller the only one that fetches a blob until the returned
// function is called.
func (p *Puller) lockBlob(ctx context.Context, desc ocispec.Descriptor) (unlock func(), _ error) {
	key := blobLock(desc.Digest)
	if err := p.blobs.Lock(ctx, key); err != nil {
		return nil, err
	}
	return func() { p.blobs.Unlock(key) }, nil
}

// keepIndexes makes each index on the path to a native manifest keep the next
// one alive, and no other manifest, and notes where they came from.
func (p *Puller) keepIndexes(ctx context.Context, name string, path []ocispec.Descriptor) error {
	note, err := docker.AppendDistributionSourceLabel(p.Content, name)
	if err != nil {
		return err
	}
	for i, desc := range path[:len(path)-1] {
		next := images.HandlerFunc(func(context.Context, ocispec.Descriptor) ([]ocispec.Descriptor, error) {
			return path[i+1 : i+2], nil
		})
		if _, err := images.SetChildrenLabels(p.Content, next)(ctx, desc); err != nil {
			return fmt.Errorf("keep manifest of %s: %w", desc.Digest, err)
		}
		failpoint.Reach("pull.kept")
		if _, err := note(ctx, desc); err != nil {
			return fmt.Errorf("note source of %s: %w", desc.Digest, err)
		}
	}
	return nil
}

var errStalled = errors.New("no progress")
