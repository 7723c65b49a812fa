package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// createContainer makes the container's image, and those of its image volumes,
// ready for the target of the sandbox's handler, and names them by their image
// IDs: those mean one platform, where a tag means several.
func (s *Service) createContainer(ctx context.Context, r *runtime.CreateContainerRequest, next func(context.Context, *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error)) (*runtime.CreateContainerResponse, error) {
	handler, ok, err := s.sandboxes.handlerOf(ctx, r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if !ok {
		return next(ctx, r) // the service behind says that there is no such sandbox
	}
	rt, err := s.lookup(handler)
	if err != nil {
		return nil, err
	}
	r = proto.CloneOf(r)
	specs := imageSpecs(r)
	var refs []reference.Named
	for _, spec := range specs {
		if e, ok := s.meant(spec, rt.Target); ok {
			refs = append(refs, byDigest(e))
		}
	}
	release, err := s.use(ctx, refs, func() ([]imagepin.Entry, error) {
		var entries []imagepin.Entry
		for _, spec := range specs {
			e, ok, err := s.readyFor(ctx, spec, rt)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue // nothing is known of it: the service behind answers
			}
			name(spec, e)
			entries = append(entries, e)
		}
		return entries, nil
	})
	if err != nil {
		return nil, err
	}
	defer release()
	return next(ctx, r)
}

// imageSpecs are the images that a container is made of.
func imageSpecs(r *runtime.CreateContainerRequest) []*runtime.ImageSpec {
	var specs []*runtime.ImageSpec
	if spec := r.GetConfig().GetImage(); spec.GetImage() != "" {
		specs = append(specs, spec)
	}
	for _, m := range r.GetConfig().GetMounts() {
		if spec := m.GetImage(); spec.GetImage() != "" {
			specs = append(specs, spec)
		}
	}
	return specs
}

// name makes spec say the image ID, and keeps how the caller had called it.
func name(spec *runtime.ImageSpec, e imagepin.Entry) {
	if spec.GetUserSpecifiedImage() == "" && spec.GetImage() != e.ImageID.String() {
		spec.UserSpecifiedImage = spec.GetImage()
	}
	spec.Image = e.ImageID.String()
}

// readyFor finds what an image of a container means for a target, and makes it
// ready where it is not. ok is false where nothing is known of it.
func (s *Service) readyFor(ctx context.Context, spec *runtime.ImageSpec, rt runtimeplatform.Runtime) (_ imagepin.Entry, ok bool, _ error) {
	e, ok := s.meant(spec, rt.Target)
	if !ok || e.Target == rt.Target {
		return e, ok, nil
	}
	// The tag stays with what it means for the target, if it does already:
	// the digest is what the caller was given.
	ref := byDigest(e)
	if _, taken := s.Store.Get(imagepin.Key{Ref: e.Ref, Target: rt.Target}); !taken {
		if named, err := reference.ParseNamed(e.Ref); err == nil {
			ref = named
		}
	}
	made, err := s.Puller.MakeReady(s.namespaced(ctx), pull.Need{Ref: ref, Root: e.Root, Runtime: rt})
	return made, true, s.cannotMakeReady(err, e.Ref, rt.Target)
}

// meant finds the entry that an image of a container means: one of the target
// if there is one of the same registry digest, and else the one whose digest
// has to be made ready. The digest is that under which the caller was given
// the name: a tag may have moved since.
func (s *Service) meant(spec *runtime.ImageSpec, t runtimeplatform.Target) (imagepin.Entry, bool) {
	found := s.Store.Find(spec.GetImage())
	if len(found) == 0 {
		return imagepin.Entry{}, false
	}
	asked := []string{normalized(spec.GetUserSpecifiedImage()), normalized(spec.GetImage())}
	best := slices.MaxFunc(found, func(a, b imagepin.Entry) int {
		return cmp.Or(
			compareBool(a.Target == t, b.Target == t),
			compareBool(slices.Contains(asked, a.Ref), slices.Contains(asked, b.Ref)),
			compareBool(a.Target == s.Runtimes.Default().Target, b.Target == s.Runtimes.Default().Target),
			a.ReadyAt.Compare(b.ReadyAt),
		)
	})
	if best.Target == t {
		return best, true
	}
	if e, ok := s.Store.Get(imagepin.Key{Ref: byDigest(best).String(), Target: t}); ok {
		return e, true
	}
	return best, true
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// byDigest is the reference of an entry's registry digest.
func byDigest(e imagepin.Entry) reference.Named {
	// Both were validated when the entry was made.
	named, err := reference.ParseNamed(e.Ref)
	if err != nil {
		panic(err)
	}
	ref, err := reference.WithDigest(reference.TrimNamed(named), e.Root.Digest)
	if err != nil {
		panic(err)
	}
	return ref
}

// use makes images ready and keeps them until released: no removal takes them
// away, and no garbage collection.
func (s *Service) use(ctx context.Context, refs []reference.Named, ready func() ([]imagepin.Entry, error)) (release func(), _ error) {
	names := make([]string, len(refs))
	for i, ref := range refs {
		names[i] = ref.String()
	}
	unlock, err := s.Puller.Use(ctx, names...)
	if err != nil {
		return nil, err
	}
	entries, err := ready()
	if err != nil {
		unlock()
		return nil, err
	}
	let, err := s.hold(ctx, entries...)
	if err != nil {
		unlock()
		return nil, err
	}
	return func() { let(); unlock() }, nil
}

// cannotMakeReady says what would help where an image that is needed now cannot
// be had: only the node's own credentials may be used for it.
func (s *Service) cannotMakeReady(err error, ref string, t runtimeplatform.Target) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	e := &imagepin.Error{
		Name: imagepin.CannotMakeReady, Ref: ref, For: t.String(), Err: err, Class: errdefs.Resolve(err),
		What: "it is needed now and not ready for this target",
		Do:   "Pull it for this runtime handler.",
	}
	var cause *imagepin.Error
	if !errors.As(err, &cause) {
		return e
	}
	fetching := false
	switch cause.Name {
	case imagepin.ImageVerificationFailed:
		return err // which would be no other for a pull
	case imagepin.PullAccessDenied, imagepin.CannotPullImage:
		fetching = true
	}
	// One advice is better than two, and the cause knows more than this, but
	// not that a pod's pull secret does not count here.
	bare := *cause
	bare.Do = ""
	e.Err = &bare
	switch {
	case fetching && s.DiscardLayers:
		e.Do = fmt.Sprintf("Its layers were discarded after they were unpacked for another target, and only the node's own credentials "+
			"can fetch them here. Set discard_unpacked_layers = false, give containerd a credential for the registry, "+
			"or let kubelet name the handler (feature gate RuntimeClassInImageCriApi) so that it is pulled for %s.", t)
	case cause.Do != "" && cause.Name != imagepin.PullAccessDenied:
		e.Do = cause.Do
	}
	return e
}
