package apply

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/applied"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
)

// parallel is how many images are made ready at once. Their downloads share max_concurrent_downloads.
const parallel = 4

// prepare makes all images of a plan ready, by digest. It sets the descriptors of the plan that were not known. What it
// imports is held by a lease, and what is ready by the digests that the state keeps.
func (a *Applier) prepare(ctx context.Context, r Request, p *plan, report func(Progress)) error {
	run := func(ctx context.Context) error {
		if r.Bundle != nil {
			if err := a.importBundle(ctx, r.Bundle, p, report); err != nil {
				return err
			}
			failpoint.Reach("apply.imported")
		}
		return a.makeReady(ctx, r, p, report)
	}
	var roots []digest.Digest
	for _, i := range r.Lock.Images {
		roots = append(roots, i.Ref.Digest())
	}
	if err := a.config.State.Keep(ctx, roots); err != nil {
		return err
	}
	failpoint.Reach("apply.kept")
	if r.Bundle == nil || len(p.jobs) == 0 {
		return run(ctx)
	}
	if err := a.checkSpace(ctx, p); err != nil {
		return err
	}
	return lease.With(ctx, a.config.Leases, lease.Pull, run)
}

// hold adds content on the node to the lease in ctx.
func (a *Applier) hold(ctx context.Context, d digest.Digest) error {
	id, ok := leases.FromContext(ctx)
	if !ok {
		return fmt.Errorf("no lease: %w", errdefs.ErrFailedPrecondition)
	}
	return a.config.Leases.AddResource(ctx, leases.Lease{ID: id}, leases.Resource{ID: d.String(), Type: upstream.ContentType})
}

// making is the state of makeReady.
type making struct {
	mu      sync.Mutex
	made    []imagepin.Key
	missing map[string]error // images without a platform for any target yet, by reference
	found   map[string]bool
}

// makeReady makes the images of a plan ready, and notes in the plan which it has made. An image of which the platforms are not
// known must be published for at least one target.
func (a *Applier) makeReady(ctx context.Context, r Request, p *plan, report func(Progress)) error {
	m := &making{missing: make(map[string]error), found: make(map[string]bool)}
	total := int64(len(p.jobs))
	report(Progress{Phase: Preparing, Total: total})
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, j := range p.jobs {
		group.Go(func() error {
			pulled, err := recovered(func() (pull.Pulled, error) { return a.makeJob(gctx, r, p, j) })
			m.mu.Lock()
			defer m.mu.Unlock()
			ref := j.image.Ref.String()
			var known *imagepin.Error
			switch {
			case err == nil:
				failpoint.Reach("apply.made")
				m.made, m.found[ref] = append(m.made, j.key()), true
				p.setRoot(pulled.Root)
			case errors.As(err, &known) && known.Reason == imagepin.NoMatchingPlatform && !j.offered:
				m.missing[ref] = err
			default:
				return err
			}
			report(Progress{Phase: Preparing, Done: int64(len(m.made)), Total: total, Ref: ref})
			return nil
		})
	}
	err := group.Wait()
	for ref, none := range m.missing {
		if err == nil && !m.found[ref] && !a.readyForSome(ref) {
			err = none
		}
	}
	p.made = m.made
	return err
}

// readyForSome reports whether an image was ready for a target before the apply.
func (a *Applier) readyForSome(ref string) bool {
	for _, rt := range a.config.Runtimes().Targets() {
		if _, ok := a.config.Images.Get(imagepin.Key{Ref: ref, Target: rt}); ok {
			return true
		}
	}
	return false
}

// recovered runs a function in a goroutine of this package. A panic becomes an error: it must not end containerd.
func recovered[T any](run func() (T, error)) (result T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return run()
}

// makeJob makes one image ready for one target.
func (a *Applier) makeJob(ctx context.Context, r Request, p *plan, j job) (pull.Pulled, error) {
	l := pull.Locked{Ref: j.image.Ref, Root: p.rootOf(j), Runtime: j.runtime, From: j.from, Credential: r.Credential}
	if l.Root.Digest == "" {
		l.VerifyAs = names(r.Lock, j.image.Ref)
	}
	made, err := a.config.Puller.MakeLocked(ctx, l)
	if err != nil && j.from != pull.FromRegistry && r.Bundle == nil && isLost(err) {
		l.From = pull.FromRegistry // another tool removed or damaged it
		return a.config.Puller.MakeLocked(ctx, l)
	}
	return made, err
}

// isLost reports whether an image was not made ready because its content is not on the node, or damaged.
func isLost(err error) bool {
	var known *imagepin.Error
	if errors.As(err, &known) && known.Reason == imagepin.NoMatchingPlatform {
		return false
	}
	return errdefs.IsNotFound(err) || known != nil && known.Reason == imagepin.ContentCorrupt
}

func names(l *lock.Lock, ref reference.Canonical) (all []reference.Named) {
	for _, i := range l.Images {
		if i.Ref.String() == ref.String() {
			all = append(all, i.Name())
		}
	}
	return all
}

// tag records the digest of each tag of a lock for the targets of the node, which the pins of the lock already decide. Other
// tools then see it too.
func (a *Applier) tag(ctx context.Context, now *applied.Applied) error {
	runtimes := a.storedRuntimes(now.Handlers)
	done := make(map[string]bool)
	for _, i := range now.Lock.Images {
		tag, ok := i.Tag()
		if !ok || done[tag.String()] {
			continue
		}
		done[tag.String()] = true
		for _, rt := range a.runtimesFor(i, runtimes) {
			locked, ready := a.config.Images.Get(imagepin.Key{Ref: i.Ref.String(), Target: rt.Target})
			e, tagged := a.config.Images.Get(imagepin.Key{Ref: tag.String(), Target: rt.Target})
			if !ready || tagged && e.Root.Digest == i.Ref.Digest() {
				continue
			}
			// The content is on the node. If the image was copied to another repository, that of the tag may not have it.
			l := pull.Locked{Ref: tag, Root: now.Roots[i.Ref.Digest()], Runtime: rt}
			switch onNode := now.Bundle || tag.Name() != i.Ref.Name(); {
			case onNode && locked.Source == imagepin.SourceImported:
				l.From = pull.FromBundle
			case onNode:
				l.From = pull.FromNode
			}
			if _, err := a.config.Puller.MakeLocked(ctx, l); err != nil {
				return err
			}
			failpoint.Reach("apply.tagged")
		}
	}
	return nil
}
