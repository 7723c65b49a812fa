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
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

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
		vouching: &vouching{content: c.Content, index: c.Images, proofs: c.Proofs, locks: c.Locks},
		damage:   &damage{content: c.Content, leases: c.Leases, images: c.Images, garbage: c.Garbage, locks: c.Locks},
	}
}

// sourceOf is where the content of a job comes from. end is called where a
// session that was opened makes no progress.
func (f *fetcher) sourceOf(ctx context.Context, j Job, end context.CancelCauseFunc) *source {
	s := &source{name: j.Ref.String(), ref: j.Ref, trusted: f.vouching.trusts(j)}
	s.served = func(d digest.Digest) { f.vouching.served.note(j.Ref, d) }
	s.session = sync.OnceValues(func() (*resolve.Session, error) {
		session := j.Session
		if session == nil {
			session = f.sessions.Session(j.Ref, j.Credential)
		}
		s.opened.Store(true)
		f.endStalled(ctx, session, end)
		return session, nil
	})
	return s
}

// endStalled ends a pull whose session makes no progress.
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

// fetchBlob puts the content of desc into the content store, from the registry where it is not there yet. Concurrent
// identical calls fetch once. What is there has to be what this registry serves, see [vouching.vouch].
func (f *fetcher) fetchBlob(ctx context.Context, src *source, desc ocispec.Descriptor) error {
	unlock, err := f.locks.blob(ctx, desc.Digest)
	if err != nil {
		return err
	}
	defer unlock()
	from, err := src.Fetcher(ctx, src.name)
	if err != nil {
		return err
	}
	if err := remotes.Fetch(ctx, f.content, from, desc); err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("fetch %s: %w", desc.Digest, err)
	}
	// What was here already may be damaged, with or without a record.
	if _, err := f.damage.verifyLocked(ctx, src, desc); err != nil {
		return err
	}
	return f.vouching.vouch(ctx, src, from, desc)
}

// keepIndexes makes each index on the path to a native manifest keep the next
// one alive, and no other manifest, and notes where they came from.
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
