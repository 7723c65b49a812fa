package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/order"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// createContainer makes the container's image, and those of its image volumes,
// ready for the target of the sandbox's handler, and names them by their image
// IDs: those mean one platform, where a tag means several.
func (s *containers) createContainer(ctx context.Context, r *runtime.CreateContainerRequest, next func(context.Context, *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error)) (*runtime.CreateContainerResponse, error) {
	sandbox, err := s.sandboxes.byID(ctx, r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if sandbox == nil {
		return next(ctx, r) // the service behind says that there is no such sandbox
	}
	s.sandboxes.learn(sandbox, r.GetSandboxConfig())
	rt, err := s.lookup(sandbox.handler)
	if err != nil {
		return nil, err
	}
	r, release, err := s.readyImages(ctx, r, rt)
	if err != nil {
		return nil, err
	}
	defer release()
	return next(ctx, r)
}

// readyImages makes the images of a container ready, and then the pins that their
// use makes: what is refused, or cannot be run, is not pinned. It gives the request
// that names the images by their IDs. They are held until release is called. Where
// another use has pinned a reference meanwhile, that decides.
func (s *containers) readyImages(ctx context.Context, asked *runtime.CreateContainerRequest, rt runtimeplatform.Runtime) (r *runtime.CreateContainerRequest, release func(), _ error) {
	pod := podOf(asked.GetSandboxConfig())
	for range maxTries {
		r = proto.CloneOf(asked)
		wants, err := s.wants(ctx, imageSpecs(r), pod, rt.Target)
		if err != nil {
			return nil, nil, err
		}
		if release, err = s.useWanted(ctx, r, wants, rt); err != nil {
			return nil, nil, err
		}
		decided, err := s.pinUses(ctx, wants, pod)
		if err == nil && decided {
			return r, release, nil
		}
		release()
		if err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, fmt.Errorf("the pins of the container's images moved each time that they were made ready: %w", errdefs.ErrUnavailable)
}

// useWanted makes what a container wants ready and holds it until release is
// called. The request names it by its IDs from then on.
func (s *containers) useWanted(ctx context.Context, r *runtime.CreateContainerRequest, wants []want, rt runtimeplatform.Runtime) (release func(), _ error) {
	refs := make([]reference.Named, len(wants))
	for i, w := range wants {
		refs[i] = w.byDigest()
	}
	return s.use(ctx, refs, func() ([]imagepin.Entry, error) {
		var entries []imagepin.Entry
		for _, w := range wants {
			e, err := s.readyFor(ctx, w, rt)
			if err != nil {
				return nil, err
			}
			if w.spec == r.GetConfig().GetImage() {
				if err := userOfAnother(r.GetConfig(), w, e); err != nil {
					return nil, err
				}
			}
			name(w.spec, e)
			entries = append(entries, e)
		}
		return entries, nil
	})
}

// pinUses makes the pins of a container's images, and reports whether each of them
// decides for what was made ready.
func (s *containers) pinUses(ctx context.Context, wants []want, pod policy.Pod) (decided bool, _ error) {
	for _, w := range wants {
		if w.called == nil {
			continue
		}
		held, err := s.Decider.PinUse(s.namespaced(ctx), w.called, pod, w.root)
		if err != nil || held != nil && held.Root.Digest != w.root.Digest {
			return false, err
		}
	}
	return true, nil
}

// want is an image that a container is made of, and what it has been decided to
// mean.
type want struct {
	spec *runtime.ImageSpec
	// entry is the image that the caller was given.
	entry imagepin.Entry
	// called is the reference by which the pod calls it; nil where it says none.
	called reference.Named
	// root is what is to run: the entry's, unless a pin says otherwise.
	root ocispec.Descriptor
	pin  *pin.Pin // that decides; nil where none does
	// pinned is whether a pin decides, or is made by this use.
	pinned bool
}

func (w want) byDigest() reference.Named {
	e := w.entry
	e.Root = w.root
	return byDigest(e)
}

// wants decides what the images of a container mean. One that no key is recorded
// of is left out: the service behind answers for it.
func (s *containers) wants(ctx context.Context, specs []*runtime.ImageSpec, pod policy.Pod, t runtimeplatform.Target) ([]want, error) {
	var wants []want
	for _, spec := range specs {
		e, ok := s.meant(spec, t)
		if !ok {
			if err := s.lost(ctx, spec.GetImage(), t); err != nil {
				return nil, err
			}
			continue
		}
		w := want{spec: spec, entry: e, root: e.Root}
		if ref, ok := calledBy(spec, e); ok {
			var err error
			if w.pin, w.pinned, err = s.Decider.PinForPod(s.namespaced(ctx), ref, pod); err != nil {
				return nil, err
			}
			w.called = ref
		}
		if w.pin != nil {
			w.root = w.pin.Root
		}
		wants = append(wants, w)
	}
	return wants, nil
}

// lost fails where an image has keys that are not ready. The service behind would
// make a container of it, whatever its pod's pin says.
func (s *containers) lost(ctx context.Context, name string, t runtimeplatform.Target) error {
	record := name
	if _, err := digest.Parse(name); err != nil {
		record = normalized(name)
	}
	recorded, err := s.Store.HasKeys(s.namespaced(ctx), record)
	if err != nil || !recorded {
		return err
	}
	return &imagepin.Error{
		Reason: imagepin.ImageNotReady, Ref: name, Target: t.String(), Class: errdefs.ErrNotFound,
		Message: "it is recorded and not ready for any runtime handler of the node",
		Hint:    "Pull it again, as kubelet does with its next try.",
	}
}

// calledBy is the reference by which a pod calls an image, where that is one of
// the image's repository: an image ID alone says nothing of a reference.
func calledBy(spec *runtime.ImageSpec, e imagepin.Entry) (reference.Named, bool) {
	for _, name := range []string{spec.GetUserSpecifiedImage(), spec.GetImage()} {
		if _, err := digest.Parse(name); name == "" || err == nil {
			continue
		}
		ref, err := reference.ParseDockerRef(name)
		if err == nil && ref.Name() == byDigest(e).Name() {
			return ref, true
		}
	}
	return nil, false
}

// podOf is what a policy needs of a sandbox.
func podOf(c *runtime.PodSandboxConfig) policy.Pod {
	return policy.Pod{Namespace: c.GetMetadata().GetNamespace(), Labels: c.GetLabels(), Annotations: c.GetAnnotations()}
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

// readyFor gives the entry of an image for a target, and makes it ready where it
// is not.
func (s *containers) readyFor(ctx context.Context, w want, rt runtimeplatform.Runtime) (imagepin.Entry, error) {
	if w.entry.Target == rt.Target && w.entry.Root.Digest == w.root.Digest {
		// It may have been removed before it was locked.
		if now, ok := s.Store.Get(w.entry.Key); ok && now.Root.Digest == w.root.Digest {
			return now, nil
		}
	}
	// The tag stays with what it means for the target, if it does already:
	// the digest is what the caller was given.
	ref := w.byDigest()
	if _, taken := s.Store.Get(imagepin.Key{Ref: w.entry.Ref, Target: rt.Target}); !taken && !w.pinned {
		if named, err := reference.ParseNamed(w.entry.Ref); err == nil {
			ref = named
		}
	}
	made, err := s.Puller.MakeReady(s.namespaced(ctx), pull.Need{Ref: ref, Root: w.root, Runtime: rt, Pin: w.pin})
	return made, s.cannotMakeReady(err, w.entry.Ref, rt.Target)
}

// meant finds the entry that an image of a container means: one of the target
// if there is one of the same registry digest, and else the one whose digest
// has to be made ready. The digest is that under which the caller was given
// the name: a tag may have moved since.
func (s *containers) meant(spec *runtime.ImageSpec, t runtimeplatform.Target) (imagepin.Entry, bool) {
	found := s.Store.Find(spec.GetImage())
	if len(found) == 0 {
		return imagepin.Entry{}, false
	}
	asked := []string{normalized(spec.GetUserSpecifiedImage()), normalized(spec.GetImage())}
	best := slices.MaxFunc(found, func(a, b imagepin.Entry) int {
		return cmp.Or(
			order.Bool(a.Target == t, b.Target == t),
			order.Bool(slices.Contains(asked, a.Ref), slices.Contains(asked, b.Ref)),
			order.Bool(a.Target == s.Runtimes().Default().Target, b.Target == s.Runtimes().Default().Target),
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

// cannotMakeReady says what would help where an image that is needed now cannot
// be had: only the node's own credentials may be used for it.
func (s *containers) cannotMakeReady(err error, ref string, t runtimeplatform.Target) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	e := &imagepin.Error{
		Reason: imagepin.ImageNotReady, Ref: ref, Target: t.String(), Err: err, Class: errdefs.Resolve(err),
		Message: "it is needed now and not ready for this target",
		Hint:    "Pull it for this runtime handler.",
	}
	var cause *imagepin.Error
	if !errors.As(err, &cause) {
		return e
	}
	fetching := false
	switch cause.Reason {
	case imagepin.ImageVerificationFailed, imagepin.PinnedDigestGone:
		return err // which would be no other for a pull
	case imagepin.PullAccessDenied, imagepin.CannotPullImage:
		fetching = true
	}
	// One advice is better than two, and the cause knows more than this, but
	// not that a pod's pull secret does not count here.
	bare := *cause
	bare.Hint = ""
	e.Err = &bare
	switch {
	case fetching && s.Settings().DiscardLayers:
		e.Hint = fmt.Sprintf("Its layers were discarded after they were unpacked for another target, and only the node's own credentials "+
			"can fetch them here. Set discard_unpacked_layers = false, give containerd a credential for the registry, "+
			"or let kubelet name the handler (feature gate RuntimeClassInImageCriApi) so that it is pulled for %s.", t)
	case cause.Hint != "" && cause.Reason != imagepin.PullAccessDenied:
		e.Hint = cause.Hint
	}
	return e
}
