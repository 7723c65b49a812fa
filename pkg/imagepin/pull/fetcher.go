package pull

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"k8s.io/utils/lru"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// fetcher fetches blobs from registries.
type fetcher struct {
	content  content.Store
	sessions Sessions
	settings func() *Settings
	locks    *Locks
	vouching *vouching
	damage   *damage
}

func newFetcher(c Config) *fetcher {
	return &fetcher{
		content: c.Content, sessions: c.Sessions, settings: c.Settings, locks: c.Locks,
		vouching: &vouching{content: c.Content, index: c.Images, proofs: c.Proofs, served: lru.New(maxServed)},
		damage:   &damage{content: c.Content, leases: c.Leases, images: c.Images, garbage: c.Garbage, locks: c.Locks},
	}
}

// sourceOf returns the source for the content of a job. end is called if an open session makes no progress.
func (f *fetcher) sourceOf(ctx context.Context, j Job, end context.CancelCauseFunc) *source {
	if j.From != FromRegistry {
		s := localSource(j.Ref.String(), j.Root)
		s.ref, s.trusted, s.meter = j.Ref, true, j.meter
		return s
	}
	s := &source{
		name: j.Ref.String(), ref: j.Ref, registry: reference.Domain(j.Ref), repository: j.Ref.Name(),
		trusted: f.vouching.trusts(j), meter: j.meter, labels: distributionSource(j.Ref.String()),
	}
	s.served = func(d digest.Digest) { f.vouching.served.Add(servedBlob{j.Ref.Name(), d}, nil) }
	s.known = sync.OnceValue(func() *resolve.Session {
		if j.Session != nil {
			return j.Session
		}
		return f.sessions.Session(j.Ref, j.Credential)
	})
	s.session = sync.OnceValues(func() (*resolve.Session, error) {
		session := s.known()
		s.opened.Store(true)
		f.endStalled(ctx, session, end)
		return session, nil
	})
	return s
}

// endStalled calls end if a session makes no progress.
func (f *fetcher) endStalled(ctx context.Context, session *resolve.Session, end context.CancelCauseFunc) {
	timeout := f.settings().ProgressTimeout
	if timeout <= 0 {
		return
	}
	stalled := session.Stalled(ctx, timeout)
	go func() {
		select {
		case <-stalled:
			end(errStalled)
		case <-ctx.Done():
		}
	}()
}

// fetchBlob fetches desc from the registry if it is not in the content store. Concurrent identical calls fetch once.
// Content that is on the node must be content that this registry serves, see [vouching.vouch].
func (f *fetcher) fetchBlob(ctx context.Context, src *source, desc ocispec.Descriptor) error {
	from, err := src.Fetcher(ctx, src.name)
	if err != nil {
		return err
	}
	if err := f.fetchMissing(ctx, src, from, desc); err != nil || f.vouching.known(ctx, src, desc) {
		return err
	}
	// Without the blob's lock, because this registry may be slow, and others need the blob.
	if err := f.vouching.vouch(ctx, src, from, desc); err != nil {
		return err
	}
	return f.fetchMissing(ctx, src, from, desc) // the blob may have been removed meanwhile
}

// fetchMissing fetches desc if it is not in the content store, or if its file is damaged, with or without a record.
func (f *fetcher) fetchMissing(ctx context.Context, src *source, from transfer.Fetcher, desc ocispec.Descriptor) error {
	unlock, err := f.locks.of(src.registry).blob(ctx, desc.Digest)
	if err != nil {
		return err
	}
	defer unlock()
	fetch := func() error { return remotes.Fetch(ctx, src.ingests(f.content), from, desc) }
	err = fetch()
	for err != nil && wrongBlob(err) == desc.Digest && src.otherwise(ctx, desc.Digest) {
		err = fetch()
	}
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("fetch %s: %w", desc.Digest, err)
	}
	_, err = f.damage.verifyOrReplace(ctx, src, desc)
	return err
}

// keepIndexes labels each index on the path to a native manifest, so that it keeps the next descriptor on the path and
// no other manifest. It also labels the indexes with their distribution source.
func (f *fetcher) keepIndexes(ctx context.Context, name string, path []ocispec.Descriptor) error {
	note, err := docker.AppendDistributionSourceLabel(f.content, name)
	if err != nil {
		return err
	}
	for i, desc := range path[:len(path)-1] {
		next := images.HandlerFunc(func(context.Context, ocispec.Descriptor) ([]ocispec.Descriptor, error) {
			return path[i+1 : i+2], nil
		})
		if _, err := images.SetChildrenLabels(f.content, next)(ctx, desc); err != nil {
			return fmt.Errorf("label children of %s: %w", desc.Digest, err)
		}
		failpoint.Reach("pull.kept")
		if _, err := note(ctx, desc); err != nil {
			return fmt.Errorf("label source of %s: %w", desc.Digest, err)
		}
	}
	return nil
}

var errStalled = errors.New("no progress")
