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
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/order"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// createContainer makes the container's image and the images of its image volumes ready for the target of the sandbox's
// handler. It replaces each image name in the request by the image ID, because an image ID identifies one platform and
// a tag can match several.
func (s *containers) createContainer(ctx context.Context, r *runtime.CreateContainerRequest, next func(context.Context, *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error)) (*runtime.CreateContainerResponse, error) {
	sandbox, err := s.sandboxes.byID(ctx, r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if sandbox == nil {
		return next(ctx, r) // upstream answers that the sandbox does not exist
	}
	s.sandboxes.updateMark(sandbox, r.GetSandboxConfig())
	rt, err := s.lookup(sandbox.handler)
	if err != nil {
		return nil, err
	}
	configs, release, err := s.readyImages(ctx, []*runtime.ContainerConfig{r.GetConfig()}, podOf(r.GetSandboxConfig()), rt)
	if err != nil {
		return nil, err
	}
	defer release()
	r = proto.CloneOf(r)
	r.Config = configs[0]
	return s.createFromImages(ctx, r, rt.Target, next)
}

// readyImages makes the images of containers of a pod ready, and then creates the pins that this use requires. It pins last, so
// that an image that cannot run is not pinned. It calls the image verifiers before it locks the images: a verifier is a
// program that can take long. It returns the containers with image IDs in place of names. The images stay locked and leased
// until release is called. If another use pins a reference in the meantime, that pin applies.
func (s *containers) readyImages(ctx context.Context, original []*runtime.ContainerConfig, pod policy.Pod, rt runtimeplatform.Runtime) (configs []*runtime.ContainerConfig, release func(), _ error) {
	if err := checkNames(imageSpecs(original...)); err != nil {
		return nil, nil, err
	}
	for _, spec := range imageSpecs(original...) {
		if err := s.waitCompared(ctx, normalized(spec.GetImage())); err != nil {
			return nil, nil, err
		}
	}
	for range maxTries {
		configs = make([]*runtime.ContainerConfig, len(original))
		for i, c := range original {
			configs[i] = proto.CloneOf(c)
		}
		specs := imageSpecs(configs...)
		dropOwnAnnotations(specs)
		images, err := s.resolveImages(ctx, specs, pod, rt.Target)
		if err != nil {
			return nil, nil, err
		}
		if err := s.decideNew(ctx, images, pod, rt.Target); err != nil {
			return nil, nil, err
		}
		if err := s.verifyImages(ctx, images, rt.Target); err != nil {
			return nil, nil, err
		}
		if release, err = s.useContainerImages(ctx, configs, images, rt); err != nil {
			return nil, nil, err
		}
		current, err := s.Decider.Confirm(s.namespaced(ctx), usedOf(images)...)
		if err == nil && current {
			s.nameForGuest(configs, images, rt.Handler)
			for _, spec := range specs {
				s.noteUse(ctx, digest.Digest(spec.GetImage()), rt.Target)
			}
			return configs, release, nil
		}
		release()
		if err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, fmt.Errorf("the pins of the container's images kept changing while the images were made ready: %w", errdefs.ErrUnavailable)
}

// useContainerImages makes the images of containers ready, and locks and leases them until release is called. It
// replaces the image names in the containers by image IDs.
func (s *containers) useContainerImages(ctx context.Context, configs []*runtime.ContainerConfig, images []containerImage, rt runtimeplatform.Runtime) (release func(), _ error) {
	refs := make([]reference.Named, len(images))
	for i, w := range images {
		refs[i] = w.byDigest()
	}
	return s.useImages(ctx, refs, func() ([]imagepin.Entry, error) {
		var entries []imagepin.Entry
		for _, w := range images {
			e, err := s.ensureReady(ctx, w, rt)
			if err != nil {
				return nil, err
			}
			c := containerOf(configs, w.spec)
			if w.spec == c.GetImage() {
				if err := checkImageUser(c, w, e); err != nil {
					return nil, err
				}
			}
			if err := s.checkGuestFiles(ctx, c, w, e, rt.Handler); err != nil {
				return nil, err
			}
			setImageID(w.spec, e)
			if w.unresolved {
				annotate(w.spec, unresolved, "true")
			}
			entries = append(entries, e)
		}
		return entries, nil
	})
}

// usedOf returns what a container has to run.
func usedOf(images []containerImage) []decide.Used {
	all := make([]decide.Used, len(images))
	for i, w := range images {
		all[i] = w.Used
	}
	return all
}

// containerImage is an image of a container, and what it resolves to.
type containerImage struct {
	decide.Used
	spec *runtime.ImageSpec
	// entry is the image that the caller was given.
	entry imagepin.Entry
	// unresolved reports that the image is that of the node, because no registry has resolved the tag of a new revision.
	unresolved bool
}

func (w containerImage) byDigest() reference.Named {
	e := w.entry
	e.Root = w.Root
	return byDigest(e)
}

// resolveImages resolves the images of a container. It omits an image without a recorded key: upstream answers for it.
func (s *containers) resolveImages(ctx context.Context, specs []*runtime.ImageSpec, pod policy.Pod, t runtimeplatform.Target) ([]containerImage, error) {
	var images []containerImage
	for _, spec := range specs {
		use := decide.Use{Name: spec.GetImage(), Pod: pod}
		e, ok := s.findEntry(spec, t)
		if ok {
			use.Image, use.Root = byDigest(e), e.Root
			use.Ref, use.InRepository = podReference(spec, e)
		} else if err := s.failIfGone(ctx, spec.GetImage(), t); err != nil {
			return nil, err
		}
		used, err := s.Decider.Use(s.namespaced(ctx), use)
		if err != nil {
			return nil, err
		}
		if ok {
			images = append(images, containerImage{Used: used, spec: spec, entry: e})
		}
	}
	return images, nil
}

// failIfGone fails if an image without an entry has keys but none is ready, or has just been removed. Otherwise upstream,
// which handles the event of the removal later, could create a container from the image and ignore the pod's pin.
func (s *containers) failIfGone(ctx context.Context, name string, t runtimeplatform.Target) error {
	record := name
	_, err := digest.Parse(name)
	isID := err == nil
	if !isID {
		record = normalized(name)
	}
	message := "the image is recorded but not ready for any runtime handler of this node"
	recorded, err := s.Store.HasKeys(s.namespaced(ctx), record)
	switch {
	case errdefs.IsNotFound(err) && isID:
		message = "the image is not on this node"
	case errdefs.IsNotFound(err):
		return nil // upstream also knows short IDs
	case err != nil || !recorded:
		return err
	}
	return &imagepin.Error{
		Reason: imagepin.ImageNotReady, Ref: name, Target: t.String(), Class: errdefs.ErrNotFound, Message: message,
		Hint: "Pull it again. kubelet does so when it retries.",
	}
}

// podReference returns the reference by which a pod names an image, and whether it is in the image's repository. It prefers one that
// is. It returns nil for an image ID alone, which has no reference.
func podReference(spec *runtime.ImageSpec, e imagepin.Entry) (ref reference.Named, inRepository bool) {
	for _, name := range []string{spec.GetUserSpecifiedImage(), spec.GetImage()} {
		if _, err := digest.Parse(name); name == "" || err == nil {
			continue
		}
		named, err := reference.ParseDockerRef(name)
		switch {
		case err != nil:
		case named.Name() == byDigest(e).Name():
			return named, true
		case ref == nil:
			ref = named
		}
	}
	return ref, false
}

// podOf returns the fields of a sandbox that policies match.
func podOf(c *runtime.PodSandboxConfig) policy.Pod {
	return newPod(c)
}

// podMessage has the common fields of the CRI messages about a pod.
type podMessage interface {
	GetMetadata() *runtime.PodSandboxMetadata
	GetLabels() map[string]string
	GetAnnotations() map[string]string
}

func newPod(m podMessage) policy.Pod {
	return policy.Pod{
		Namespace: m.GetMetadata().GetNamespace(), Name: m.GetMetadata().GetName(), UID: m.GetMetadata().GetUid(),
		Labels: m.GetLabels(), Annotations: m.GetAnnotations(),
	}
}

// imageSpecs returns the images of containers and of their image volumes.
func imageSpecs(configs ...*runtime.ContainerConfig) []*runtime.ImageSpec {
	var specs []*runtime.ImageSpec
	for _, c := range configs {
		if spec := c.GetImage(); spec.GetImage() != "" {
			specs = append(specs, spec)
		}
		for _, m := range c.GetMounts() {
			if spec := m.GetImage(); spec.GetImage() != "" {
				specs = append(specs, spec)
			}
		}
	}
	return specs
}

// containerOf returns the container that one of their imageSpecs belongs to.
func containerOf(configs []*runtime.ContainerConfig, spec *runtime.ImageSpec) *runtime.ContainerConfig {
	i := slices.IndexFunc(configs, func(c *runtime.ContainerConfig) bool { return slices.Contains(imageSpecs(c), spec) })
	return configs[i]
}

// checkNames fails with [imagepin.InvalidReference] (ErrInvalidArgument) if the name of an image is too long for a reference.
func checkNames(specs []*runtime.ImageSpec) error {
	for _, spec := range specs {
		for _, name := range []string{spec.GetImage(), spec.GetUserSpecifiedImage()} {
			if err := imagepin.CheckReference(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// ensureReady returns the entry of an image for a target. It makes the image ready if necessary.
func (s *containers) ensureReady(ctx context.Context, w containerImage, rt runtimeplatform.Runtime) (imagepin.Entry, error) {
	if w.entry.Target == rt.Target && w.entry.Root.Digest == w.Root.Digest {
		// The image may have been removed before it was locked.
		if now, ok := s.Store.Get(w.entry.Key); ok && now.Root.Digest == w.Root.Digest {
			return now, nil
		}
	}
	// If the tag already has an entry for the target, that entry stays: use the digest that the caller was given.
	ref := w.byDigest()
	if _, taken := s.Store.Get(imagepin.Key{Ref: w.entry.Ref, Target: rt.Target}); !taken && w.Scope == "" {
		if named, err := reference.ParseNamed(w.entry.Ref); err == nil {
			ref = named
		}
	}
	damage := s.damageOf(w, rt.Target)
	made, err := s.Puller.MakeReady(bandwidth.ForPod(s.namespaced(ctx)), pull.Need{Ref: ref, Root: w.Root, Runtime: rt, Pin: w.Pin})
	return made, s.notReadyError(err, w.entry.Ref, rt.Target, damage)
}

// damageOf describes what is wrong with the image on the node that a container needs. It returns "" if it is not damaged.
func (s *containers) damageOf(w containerImage, t runtimeplatform.Target) string {
	for _, ref := range []string{w.byDigest().String(), w.entry.Ref} {
		if d, ok := s.Store.GetDamaged(imagepin.Key{Ref: ref, Target: t}); ok && d.Root.Digest == w.Root.Digest {
			return cmp.Or(d.Reason, "a part of it is gone")
		}
	}
	return ""
}

// findEntry finds the entry of a container's image. It prefers an entry of the target with the same registry digest,
// and otherwise returns the entry whose digest must be made ready. The digest is the one that the caller was given for
// the name, because a tag may have moved since.
func (s *containers) findEntry(spec *runtime.ImageSpec, t runtimeplatform.Target) (imagepin.Entry, bool) {
	found := s.Store.Find(spec.GetImage())
	if len(found) == 0 { // a damaged image is made ready again
		for _, d := range s.findDamaged(spec.GetImage()) {
			found = append(found, d.Entry)
		}
	}
	if len(found) == 0 {
		return imagepin.Entry{}, false
	}
	names := []string{normalized(spec.GetUserSpecifiedImage()), normalized(spec.GetImage())}
	best := slices.MaxFunc(found, func(a, b imagepin.Entry) int {
		return cmp.Or(
			order.Bool(a.Target == t, b.Target == t),
			order.Bool(slices.Contains(names, a.Ref), slices.Contains(names, b.Ref)),
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

// byDigest returns the reference of an entry by its registry digest.
func byDigest(e imagepin.Entry) reference.Canonical {
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

// notReadyError adds a hint to the error for an image that is needed now and cannot be made ready. Only the node's own
// credentials are available for it. damage describes what is wrong with the image on the node; empty if it is not damaged.
func (s *containers) notReadyError(err error, ref string, t runtimeplatform.Target, damage string) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	e := &imagepin.Error{
		Reason: imagepin.ImageNotReady, Ref: ref, Target: t.String(), Err: err, Class: errdefs.Resolve(err),
		Message: "the image is needed now but is not ready for this target",
		Hint:    "Pull it for this runtime handler.",
	}
	if damage != "" {
		e.Message = "the image on this node is damaged and could not be repaired: " + damage
		e.Hint = "The node tries again in the background, and at each start of a container. It needs the registry, and a credential of " +
			"its own if the image is private: kubelet can also pull the image with the secret of the pod. To see the state, run: imagepin check"
	}
	var cause *imagepin.Error
	if !errors.As(err, &cause) {
		return e
	}
	fetching := false
	switch cause.Reason {
	case imagepin.ImageVerificationFailed, imagepin.PinnedDigestGone, imagepin.SnapshotInUse, imagepin.SnapshotNotReplaceable:
		return err // a pull would fail in the same way
	case imagepin.PullAccessDenied, imagepin.CannotPullImage:
		fetching = true
	}
	// Show one hint only. The hint of the cause is more specific, but it does not account for the pod's pull secret,
	// which is not available here.
	bare := *cause
	bare.Hint = ""
	e.Err = &bare
	switch {
	case damage != "":
	case fetching && s.Settings().DiscardLayers:
		e.Hint = fmt.Sprintf("Its layers were discarded after they were unpacked for another target, and only the node's own credentials "+
			"can fetch them here. Set discard_unpacked_layers = false, give containerd a credential for the registry, "+
			"or let kubelet name the handler (feature gate RuntimeClassInImageCriApi) so that it is pulled for %s.", t)
	case cause.Hint != "" && cause.Reason != imagepin.PullAccessDenied:
		e.Hint = cause.Hint
	}
	return e
}
