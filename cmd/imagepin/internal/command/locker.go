package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"golang.org/x/sync/errgroup"

	"github.com/imagepin/imagepin/cmd/imagepin/internal/imagerefs"
	"github.com/imagepin/imagepin/cmd/imagepin/internal/registry"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// maxUnavailable is the number of failures after which a registry that has not answered at all gets no more requests.
const maxUnavailable = 8

// locker resolves references.
type locker struct {
	images      *registry.Client
	concurrency int // per registry
	progress    *lockProgress

	mu         sync.Mutex
	registries map[string]*registryState
	made       int // entries
	resolved   int // distinct references
}

// registryState is what is known of a registry.
type registryState struct {
	answered    bool
	unavailable int // failures
}

func newLocker(images *registry.Client, concurrency int, stderr io.Writer) *locker {
	return &locker{images: images, concurrency: concurrency, progress: newLockProgress(stderr), registries: make(map[string]*registryState)}
}

// lock resolves references, each normalized reference once, and returns a lock with one image for each text. It fails with
// all errors together.
func (l *locker) lock(ctx context.Context, refs []imagerefs.Ref) (*lock.Lock, error) {
	if len(refs) > lock.MaxImages {
		return nil, imagerefs.InvalidInput(fmt.Sprintf("%d references, a lock has at most %d", len(refs), lock.MaxImages), "Write several locks.")
	}
	spellings := make(map[string][]imagerefs.Ref) // by normalized reference
	var order []string
	for _, r := range refs {
		name := r.Named.String()
		if spellings[name] == nil {
			order = append(order, name)
		}
		spellings[name] = append(spellings[name], r)
	}
	l.resolved = len(order)
	l.progress.start(len(order))
	images := make([]lock.Image, len(order))
	errs := make([]error, len(order))
	byRegistry := make(map[string][]int) // indexes in order
	for i, name := range order {
		host := reference.Domain(spellings[name][0].Named)
		byRegistry[host] = append(byRegistry[host], i)
	}
	var registries sync.WaitGroup
	for _, indexes := range byRegistry {
		registries.Go(func() {
			var group errgroup.Group
			group.SetLimit(l.concurrency)
			for _, i := range indexes {
				group.Go(func() error {
					images[i], errs[i] = l.image(ctx, spellings[order[i]][0].Named)
					l.progress.done()
					return nil
				})
			}
			_ = group.Wait() // the errors are in errs
		})
	}
	registries.Wait()
	l.progress.end()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var all []lock.Image
	for i, name := range order {
		for _, r := range spellings[name] {
			image := images[i]
			image.ID = r.Text
			all = append(all, image)
		}
		if errs[i] != nil {
			errs[i] = fmt.Errorf("%s: %w", places(spellings[name]), errs[i])
		}
	}
	if err := failures(errs); err != nil {
		return nil, err
	}
	made, err := lock.New(all)
	if err != nil {
		return nil, err
	}
	l.made = len(made.Images)
	return made, nil
}

// places lists where a reference was found.
func places(refs []imagerefs.Ref) string {
	return strings.Join(mapped(refs, func(r imagerefs.Ref) string { return r.Place.String() }), " and ")
}

// failures combines errors in one, each on lines of its own.
func failures(errs []error) error {
	total := len(errs)
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %s cannot be locked, nothing is written:\n%w", len(errs), count(int64(total), "reference"), errors.Join(errs...))
}

// image resolves a reference. Only its ID is missing in the result.
func (l *locker) image(ctx context.Context, ref reference.Named) (lock.Image, error) {
	if !l.mayAsk(ref) {
		return lock.Image{}, &imagepin.Error{
			Reason: imagepin.CannotPullImageManifest, Ref: ref.String(), Class: errdefs.ErrUnavailable,
			Message: fmt.Sprintf("not resolved, because %s does not answer", reference.Domain(ref)),
		}
	}
	root, err := l.images.Resolve(ctx, ref)
	l.note(ref, err)
	if err != nil {
		return lock.Image{}, err
	}
	if c, ok := ref.(reference.Canonical); ok && c.Digest() != root.Digest {
		return lock.Image{}, &imagepin.Error{
			Reason: imagepin.ContentCorrupt, Ref: ref.String(), Class: errdefs.ErrFailedPrecondition,
			Message: fmt.Sprintf("the registry answered with another digest: %s", root.Digest), Hint: "Check the registry and its mirrors.",
		}
	}
	canonical, err := reference.WithDigest(reference.TrimNamed(ref), root.Digest)
	if err != nil {
		return lock.Image{}, err
	}
	platforms, err := l.images.Platforms(ctx, ref, root)
	if err != nil {
		return lock.Image{}, inReference(ref, err)
	}
	return lock.Image{Ref: canonical, Platforms: platforms}, nil
}

// inReference adds the reference to an error that has none.
func inReference(ref reference.Named, err error) error {
	var e *imagepin.Error
	if errors.As(err, &e) {
		return err
	}
	return fmt.Errorf("%s: %w", ref, err)
}

func (l *locker) state(ref reference.Named) *registryState {
	name := reference.Domain(ref)
	s, ok := l.registries[name]
	if !ok {
		s = &registryState{}
		l.registries[name] = s
	}
	return s
}

func (l *locker) mayAsk(ref reference.Named) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state(ref)
	return s.answered || s.unavailable < maxUnavailable
}

func (l *locker) note(ref reference.Named, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.state(ref); resolve.Unavailable(err) {
		s.unavailable++
	} else {
		s.answered = true
	}
}

// summary describes what was resolved.
func (l *locker) summary() string {
	return fmt.Sprintf("Locked %s (%s, %s)", count(int64(l.made), "reference"),
		count(int64(l.resolved), "image"), countRegistries(len(l.registries)))
}

func countRegistries(n int) string {
	if n == 1 {
		return "1 registry"
	}
	return fmt.Sprintf("%d registries", n)
}
