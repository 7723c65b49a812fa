package resolve

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// sessionBlobs opens the bodies of the blobs of a session.
type sessionBlobs struct {
	session *Session
	limits  []transfer.ImageResolverOption
	fetcher remotes.Fetcher // with limits
}

// blobState is how a blob is fetched in a session, after what has failed.
type blobState struct {
	// from is the index of the first registry host to ask.
	from int
	// one is true if the blob is fetched without ranges of it.
	one bool
	// host is the index of the registry host that the blob is from, or -1.
	host int
	// mixed is true if the beginning of the blob is from elsewhere.
	mixed bool
	// ranges is the answer of the server whose ranges are a part of the blob.
	ranges *answer
}

// blobStates are the blobs of a session. The zero value is ready for use.
type blobStates struct {
	mu  sync.Mutex
	all map[digest.Digest]*blobState
}

// with calls fn with the state of a blob, for modification.
func (s *blobStates) with(d digest.Digest, fn func(*blobState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state, ok := s.all[d]
	if !ok {
		if s.all == nil {
			s.all = make(map[digest.Digest]*blobState)
		}
		state = &blobState{host: -1}
		s.all[d] = state
	}
	fn(state)
}

// open opens a blob as how says. The first Read sends the request.
func (b sessionBlobs) open(ctx context.Context, desc ocispec.Descriptor, how opening) (io.ReadCloser, error) {
	from := 0
	b.session.blobs.with(desc.Digest, func(s *blobState) { from = s.from })
	f := b.fetcher
	if from > 0 || how.fallback {
		options := b.limits
		if how.fallback {
			options = append(options[:len(options):len(options)], transfer.WithConcurrentLayerFetchBuffer(0))
		}
		if how.unlimited {
			options = append(options[:len(options):len(options)], transfer.WithDownloadLimiter(nil))
		}
		var err error
		if f, err = b.fetcherOf(ctx, from, -1, options); err != nil {
			return nil, err
		}
	}
	return fetchFrom(ctx, f, desc, how.offset)
}

// openRange opens a blob at an offset, at one registry host. It requests the range that the attempt in ctx ends at. The caller has a
// slot of the node's download limit.
func (b sessionBlobs) openRange(ctx context.Context, desc ocispec.Descriptor, host int, offset int64) (io.ReadCloser, error) {
	f, err := b.fetcherOf(ctx, host, host+1, nil)
	if err != nil {
		return nil, err
	}
	if a := attemptOf(ctx); a != nil {
		desc.Size = a.end
	}
	return fetchFrom(ctx, f, desc, offset)
}

// fetcherOf returns a fetcher for the registry hosts from one to before another, or to the last one if that is negative.
func (b sessionBlobs) fetcherOf(ctx context.Context, from, to int, options []transfer.ImageResolverOption) (remotes.Fetcher, error) {
	r := b.session.resolverOf(func(all []docker.RegistryHost) []docker.RegistryHost {
		if to < 0 {
			to = len(all)
		}
		return all[from:to]
	})
	if o, ok := r.(remotes.ResolverWithOptions); ok {
		o.SetOptions(options...)
	}
	return r.Fetcher(ctx, b.session.ref.String())
}

// skip excludes a registry host, and those before it, from further requests for a blob. It reports whether other hosts remain.
func (b sessionBlobs) skip(desc ocispec.Descriptor, host int) (others bool) {
	hosts, err := b.session.hosts()
	if err != nil || host+1 >= len(hosts) {
		return false
	}
	b.session.blobs.with(desc.Digest, func(s *blobState) { s.from = max(s.from, host+1) })
	return true
}

// mayRange reports whether ranges may be requested from the server of an answer. forbid forbids it.
func (b sessionBlobs) mayRange(desc ocispec.Descriptor, a answer) (may bool) {
	b.session.blobs.with(desc.Digest, func(s *blobState) { may = !s.one })
	return may && !b.session.origins.has(a.origin)
}

func (b sessionBlobs) forbid(a answer) { b.session.origins.add(a.origin) }

// usesRanges notes that ranges of the server of an answer are a part of a blob.
func (b sessionBlobs) usesRanges(desc ocispec.Descriptor, a answer) {
	b.session.blobs.with(desc.Digest, func(s *blobState) { s.ranges = &a })
}

// comesFrom notes the registry host that a blob is from, and setMixed whether its beginning is from elsewhere.
func (b sessionBlobs) comesFrom(desc ocispec.Descriptor, host int) {
	b.session.blobs.with(desc.Digest, func(s *blobState) { s.host = host })
}

func (b sessionBlobs) setMixed(desc ocispec.Descriptor, mixed bool) {
	b.session.blobs.with(desc.Digest, func(s *blobState) { s.mixed = mixed })
}

// silence returns how long a connection may be silent in the middle of a blob before it counts as lost; 0 sets no limit.
func (b sessionBlobs) silence() time.Duration {
	return time.Duration(b.session.traffic.limit.Load()) / silences
}

// throttled reports whether what has arrived waits for a limit of the rate. A connection is not silent then.
func (b sessionBlobs) throttled() bool { return b.session.traffic.throttled.Load() > 0 }

// waiting begins a time that is spent waiting for the network, without progress. ended ends it.
func (b sessionBlobs) waiting() (ended func()) {
	b.session.traffic.active.Add(1) // so that the limit of a stalled pull applies
	return func() { b.session.traffic.active.Add(-1) }
}

// Otherwise reports whether there is another way to fetch a blob whose content was wrong, and uses it from now on: without
// ranges, from one host only, or from the next registry host.
func (s *Session) Otherwise(d digest.Digest) (other bool) {
	hosts, err := s.hosts()
	if err != nil {
		return false
	}
	s.blobs.with(d, func(b *blobState) {
		switch {
		case b.ranges != nil:
			s.origins.add(b.ranges.origin)
			b.ranges, b.one, b.mixed, other = nil, true, false, true
		case b.mixed:
			b.mixed, other = false, true
		case b.host >= b.from && b.host+1 < len(hosts):
			b.from, other = b.host+1, true
		}
	})
	return other
}

// fetchFrom returns the body of a blob from an offset.
func fetchFrom(ctx context.Context, f remotes.Fetcher, desc ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	rc, err := f.Fetch(ctx, desc)
	if err != nil || offset == 0 {
		return rc, err
	}
	s, ok := rc.(io.Seeker)
	if !ok {
		_ = rc.Close()
		return nil, fmt.Errorf("seek: %w", errdefs.ErrNotImplemented)
	}
	if _, err := s.Seek(offset, io.SeekStart); err != nil {
		_ = rc.Close()
		return nil, err
	}
	return rc, nil
}
