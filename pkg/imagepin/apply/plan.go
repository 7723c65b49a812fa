package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/applied"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobtable"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// plan is what has to be done for a lock.
type plan struct {
	jobs []job
	made []imagepin.Key // the jobs that are done

	mu sync.Mutex // guards roots while the jobs run
	// roots has the descriptors of the images that are known.
	roots map[digest.Digest]ocispec.Descriptor
	// metadata are the indexes, manifests and configurations to import, and layers the layers.
	metadata, layers sizes
}

// sizes has the sizes of blobs. A bundle decides how many there are.
type sizes struct{ blobtable.Table[int64] }

// set sets the size of a blob.
func (s *sizes) set(d digest.Digest, size int64) error {
	n, _, err := s.Add(d)
	if err == nil {
		*s.At(n) = size
	}
	return err
}

// job is an image to make ready for one target.
type job struct {
	image   lock.Image
	runtime runtimeplatform.Runtime
	// from is where its content comes from. The content of a lock of the node is retained.
	from pull.From
	// offered reports that the image is known to be published for the platform. Without it, the platform may be missing.
	offered bool
}

func (j job) key() imagepin.Key {
	return imagepin.Key{Ref: j.image.Ref.String(), Target: j.runtime.Target}
}

// images returns the number of images of a lock for which there are jobs. Tags of one image count as the status counts them.
func (p *plan) images(l *lock.Lock) (n int) {
	planned := make(map[string]bool)
	for _, j := range p.jobs {
		planned[j.image.Ref.String()] = true
	}
	for _, i := range l.Images {
		if planned[i.Ref.String()] {
			n++
		}
	}
	return n
}

// rootOf returns the descriptor of a job's image. Its digest is empty if it is not known.
func (p *plan) rootOf(j job) ocispec.Descriptor {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.roots[j.image.Ref.Digest()]
}

// setRoot sets the descriptor of an image.
func (p *plan) setRoot(root ocispec.Descriptor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.roots[root.Digest] = root
}

// applied returns the lock of a plan whose images are ready.
func (p *plan) applied(r Request, id digest.Digest) *applied.Applied {
	return &applied.Applied{
		Lock: r.Lock, Digest: id, Roots: p.roots, Name: r.Name, Bundle: r.imported(), Handlers: r.Handlers, At: time.Now().UTC(),
	}
}

// imported reports whether the content of the images is in the bundle or, from an earlier one, on the node.
func (r Request) imported() bool { return r.Bundle != nil || r.fromBundle }

// lockOf returns the lock of the node with a digest, or nil.
func (a *Applier) lockOf(id digest.Digest) *applied.Applied {
	state := a.config.State.Get()
	for _, of := range []*applied.Applied{state.Current, state.Previous} {
		if digestOf(of) == id {
			return of
		}
	}
	return nil
}

// retained returns the images whose content is retained for the locks of the node, with the lock, by reference.
func (a *Applier) retained() map[string]*applied.Applied {
	all := make(map[string]*applied.Applied)
	state := a.config.State.Get()
	for _, of := range []*applied.Applied{state.Previous, state.Current} {
		if of == nil {
			continue
		}
		for _, i := range of.Lock.Images {
			all[i.Ref.String()] = of
		}
	}
	return all
}

// plan returns what has to be done for a lock. It fails with NotInBundle (ErrNotFound), NoMatchingPlatform (ErrNotFound) and
// UnknownRuntimeHandler (ErrInvalidArgument).
func (a *Applier) plan(ctx context.Context, r Request) (*plan, error) {
	p := &plan{roots: make(map[digest.Digest]ocispec.Descriptor)}
	runtimes, err := a.runtimesOf(r)
	if err != nil {
		return nil, err
	}
	planned := make(map[imagepin.Key]bool) // an image can have several tags
	retained := a.retained()
	for _, i := range r.Lock.Images {
		root, ok := a.root(r, i.Ref.Digest())
		if ok {
			p.roots[root.Digest] = root
		} else if r.Bundle != nil {
			return nil, absentImage(i)
		}
		like := job{image: i}
		of, isRetained := retained[i.Ref.String()]
		switch {
		case r.Bundle != nil || isRetained && of.Bundle:
			like.from = pull.FromBundle
		case isRetained:
			like.from = pull.FromNode
		}
		if err := a.planImage(ctx, r, like, a.runtimesFor(i, runtimes), p, planned); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// runtimesOf returns the runtimes to make the images of a request ready for.
func (a *Applier) runtimesOf(r Request) ([]runtimeplatform.Runtime, error) {
	if r.stored != nil || r.handlersOfLock {
		return a.storedRuntimes(r.Handlers), nil
	}
	return a.runtimes(r.Handlers)
}

// withHandlers returns a request that names no handlers with those of the node's lock, so that what an operator has once selected
// applies to the next locks too, also to those of the drop directories.
func (a *Applier) withHandlers(r Request) Request {
	r.Handlers = a.named(r.Handlers)
	current := a.config.State.Get().Current
	if r.stored != nil || r.AllHandlers || len(r.Handlers) > 0 || current == nil {
		return r
	}
	r.Handlers, r.handlersOfLock = current.Handlers, true
	return r
}

// named returns the names of handlers, each once. An empty one is the default handler.
func (a *Applier) named(handlers []string) []string {
	var all []string
	for _, handler := range handlers {
		if handler == "" {
			handler = a.config.Runtimes().Default().Handler
		}
		if !slices.Contains(all, handler) {
			all = append(all, handler)
		}
	}
	return all
}

// storedRuntimes returns the runtimes of an applied lock: those of its handlers that are still configured, or all if none is.
func (a *Applier) storedRuntimes(handlers []string) []runtimeplatform.Runtime {
	configured := slices.DeleteFunc(slices.Clone(handlers), func(handler string) bool {
		_, err := a.config.Runtimes().Lookup(handler)
		return err != nil
	})
	all, _ := a.runtimes(configured)
	return all
}

// runtimes returns a runtime for each target of some handlers, or of all.
func (a *Applier) runtimes(handlers []string) ([]runtimeplatform.Runtime, error) {
	set := a.config.Runtimes()
	if len(handlers) == 0 {
		for _, t := range set.Targets() {
			handlers = append(handlers, set.Handlers(t)...)
		}
	}
	var all []runtimeplatform.Runtime
	for _, handler := range handlers {
		rt, err := set.Lookup(handler)
		if err != nil {
			return nil, imagepin.UnknownHandler(err)
		}
		all = appendTarget(all, rt)
	}
	return all, nil
}

func appendTarget(all []runtimeplatform.Runtime, rt runtimeplatform.Runtime) []runtimeplatform.Runtime {
	if slices.ContainsFunc(all, func(o runtimeplatform.Runtime) bool { return o.Target == rt.Target }) {
		return all
	}
	return append(all, rt)
}

// runtimesFor returns the runtimes to make an image ready for. The sandbox image is also needed for the node's platform in the
// snapshotters of all handlers.
func (a *Applier) runtimesFor(i lock.Image, runtimes []runtimeplatform.Runtime) []runtimeplatform.Runtime {
	if tag, ok := i.Tag(); !ok || tag.String() != a.config.Settings().SandboxImage {
		return runtimes
	}
	set := a.config.Runtimes()
	var all []runtimeplatform.Runtime
	for _, t := range set.Targets() {
		for _, handler := range set.Handlers(t) {
			if rt, err := set.Sandbox(handler); err == nil {
				all = appendTarget(all, rt)
			}
		}
	}
	return all
}

// root returns the descriptor of an image, if the bundle, the node or its previous lock has it.
func (a *Applier) root(r Request, d digest.Digest) (ocispec.Descriptor, bool) {
	if r.Bundle != nil {
		return r.Bundle.Root(d)
	}
	state := a.config.State.Get()
	for _, known := range []*applied.Applied{state.Current, state.Previous} {
		if known != nil {
			if root, ok := known.Roots[d]; ok {
				return root, true
			}
		}
	}
	for _, e := range a.config.Images.ByRoot(d) {
		return e.Root, true
	}
	return ocispec.Descriptor{}, false
}

// planImage adds the jobs of one image, which are like a job without a runtime. The image must be published for at least one
// target.
func (a *Applier) planImage(ctx context.Context, r Request, like job, runtimes []runtimeplatform.Runtime, p *plan, planned map[imagepin.Key]bool) error {
	i := like.image
	var none error
	found := false
	for _, rt := range runtimes {
		j := like
		j.runtime = rt
		if e, ok := a.config.Images.Get(j.key()); planned[j.key()] || ok && e.Root.Digest == i.Ref.Digest() {
			found = true
			continue
		}
		var err error
		if r.Bundle != nil {
			err = a.planFromBundle(ctx, r.Bundle, &j, p)
		} else {
			err = offers(i, &j)
		}
		var known *imagepin.Error
		if errors.As(err, &known) && known.Reason == imagepin.NoMatchingPlatform {
			none = err
			continue
		}
		if err != nil {
			return err
		}
		found, planned[j.key()] = true, true
		p.jobs = append(p.jobs, j)
	}
	if !found {
		return none
	}
	return nil
}

// offers fails with NoMatchingPlatform if a lock has the platforms of an image, and none matches a job's target.
func offers(i lock.Image, j *job) error {
	if len(i.Platforms) == 0 || j.runtime.Native && slices.Contains(digests(i.Platforms), i.Ref.Digest()) {
		return nil // a manifest without an index is accepted without a check, as in containerd
	}
	for text := range i.Platforms {
		if platform, err := platforms.Parse(text); err == nil && j.runtime.Matcher.Match(platform) {
			j.offered = true
			return nil
		}
	}
	return noPlatform(j, fmt.Sprintf("the lock has %d platforms of it, and none matches", len(i.Platforms)))
}

func digests(of map[string]digest.Digest) (all []digest.Digest) {
	for _, d := range of {
		all = append(all, d)
	}
	return all
}

func noPlatform(j *job, message string) error {
	return &imagepin.Error{
		Reason: imagepin.NoMatchingPlatform, Ref: j.image.Ref.String(), Target: j.runtime.Target.String(), Class: errdefs.ErrNotFound, Message: message,
		Hint: "Publish the image for this platform, or remove it from the lock of this node.",
	}
}

// planFromBundle adds what a job needs from a bundle to the plan. It fails with NoMatchingPlatform and NotInBundle (both
// ErrNotFound).
func (a *Applier) planFromBundle(ctx context.Context, b Bundle, j *job, p *plan) error {
	root := p.roots[j.image.Ref.Digest()]
	path, err := pull.ChoosePathLocal(ctx, bundled{a.config.Content, b}, root, j.runtime)
	var known *imagepin.Error
	if errors.As(err, &known) {
		known.Ref, known.Target = j.image.Ref.String(), j.runtime.Target.String()
		return err
	}
	if errdefs.IsNotFound(err) {
		return notInBundle(j, "its manifest for this platform", "Make the bundle for this platform too (imagepin bundle --platform), or apply it for some runtime handlers only (--handler), also the next locks.")
	}
	if err != nil {
		return err
	}
	j.offered = true
	of := path[len(path)-1]
	text, err := content.ReadBlob(ctx, bundled{a.config.Content, b}, of)
	if err != nil {
		return err
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("manifest %s: %v: %w", of.Digest, err, errdefs.ErrInvalidArgument)
	}
	for _, d := range path {
		if err := p.metadata.set(d.Digest, d.Size); err != nil {
			return err
		}
	}
	if err := p.metadata.set(m.Config.Digest, m.Config.Size); err != nil {
		return fmt.Errorf("manifest %s: configuration: %w", of.Digest, err)
	}
	return a.planLayers(ctx, b, j, m, p)
}

// manifest has what a plan needs of a manifest, also of a Docker manifest.
type manifest struct {
	Config blob   `json:"config"`
	Layers []blob `json:"layers"`
}

type blob struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
}

// planLayers adds the layers of a job to the plan. A layer that is neither in the bundle nor on the node is not needed if the
// node discards layers and has the snapshot of the layers up to it.
func (a *Applier) planLayers(ctx context.Context, b Bundle, j *job, m manifest, p *plan) error {
	unpacked := -1 // the number of the last layer whose snapshot is there, once it is known
	for n, l := range m.Layers {
		has := b.Has(l.Digest)
		if !has {
			_, err := a.config.Content.Info(ctx, l.Digest)
			has = err == nil // the lease holds it
		}
		if has {
			if err := p.layers.set(l.Digest, l.Size); err != nil {
				return err
			}
			continue
		}
		if unpacked < 0 {
			unpacked = a.unpackedLayers(ctx, b, j, m)
		}
		if n >= unpacked {
			return notInBundle(j, "layer "+l.Digest.String(), "A bundle that was made with --since has only the layers that are new. Apply the older lock first, or make the bundle without --since.")
		}
	}
	return nil
}

// unpackedLayers returns how many layers of an image, from the lowest on, have a snapshot on a node that discards layers.
func (a *Applier) unpackedLayers(ctx context.Context, b Bundle, j *job, m manifest) int {
	sn := a.config.Snapshotter(j.runtime.Target.Snapshotter)
	diffIDs, err := images.RootFS(ctx, bundled{a.config.Content, b}, ocispec.Descriptor{Digest: m.Config.Digest, Size: m.Config.Size})
	if err != nil || sn == nil || !a.config.Settings().DiscardLayers {
		return 0
	}
	chain := identity.ChainIDs(diffIDs)
	for n := len(chain); n > 0; n-- {
		if _, err := sn.Stat(ctx, chain[n-1].String()); err == nil {
			return n
		}
	}
	return 0
}

// absentImage returns the error for an image that a bundle does not have.
func absentImage(i lock.Image) error {
	return &imagepin.Error{
		Reason: imagepin.NotInBundle, Ref: i.Ref.String(), Class: errdefs.ErrNotFound, Message: "the bundles do not have it",
		Hint: "Make the bundle from the lock that is applied: imagepin bundle",
	}
}

func notInBundle(j *job, what, hint string) error {
	return &imagepin.Error{
		Reason: imagepin.NotInBundle, Ref: j.image.Ref.String(), Target: j.runtime.Target.String(), Class: errdefs.ErrNotFound,
		Message: what + " is neither in the bundle nor on this node", Hint: hint,
	}
}
