package cri

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/order"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// unresolved is the annotation of an image in the request to upstream, if the tag of a new revision had to be resolved first and no
// registry has resolved it. The container says nothing about the digest of its revision.
const unresolved = imagepin.LabelPrefix + "unresolved"

// podImage is the image that a pod has for a reference. The zero value means that it has none.
type podImage struct {
	root digest.Digest
	// id is its image ID. Several digests of a repository can have it, such as two indexes with the same manifest.
	id digest.Digest
	// resolved reports that the digest may become the pin of the revision.
	resolved bool
}

// rootWithoutPull returns the digest that a pod of a new revision runs although its tag is not resolved: that which a container of the
// pod has, or the image on the node if it was imported, or if kubelet must not pull it. It returns none if the tag has to be resolved. e
// is the image on the node. If it is not known whether kubelet must not pull it, it may not become the pin. isNew is false if the
// Kubernetes API does not answer: then it is the image on the node for all pods that have no container.
//
// kubelet asks for an image whenever one of the pod's containers starts. A pod does not change its build by a crash.
func (s *base) rootWithoutPull(ctx context.Context, ref string, pod policy.Pod, e imagepin.Entry, isNew bool) (podImage, error) {
	if now, err := s.podRuns(ctx, ref, pod); err != nil || now.root != "" {
		return now, err
	}
	if e.Source == imagepin.SourceImported || !isNew {
		return podImage{e.Root.Digest, e.ImageID, true}, nil
	}
	never, known, err := s.Decider.NeverPulls(ctx, ref, pod)
	if err != nil || !never {
		return podImage{}, err
	}
	return podImage{e.Root.Digest, e.ImageID, known}, nil
}

// podRuns returns the digest that a container of a pod, in any state, has for a normalized reference. Of several, the container that was
// created last decides. One whose tag was not resolved does not count, except for the image volume of a running container: kubelet asks
// for it at each sync of the pod.
func (s *base) podRuns(ctx context.Context, ref string, pod policy.Pod) (podImage, error) {
	containers, err := s.containersOf(ctx, pod)
	if err != nil {
		return podImage{}, err
	}
	slices.SortFunc(containers, func(a, b *runtime.Container) int { return cmp.Compare(b.GetCreatedAt(), a.GetCreatedAt()) })
	for _, c := range containers {
		if spec := withID(c); isResolved(spec) {
			if e, ok := s.entryOf(spec, ref); ok {
				return podImage{e.Root.Digest, e.ImageID, true}, nil
			}
		}
		volumes, err := s.imageVolumes(ctx, c.GetId())
		if err != nil {
			return podImage{}, err
		}
		for _, spec := range volumes {
			if !isResolved(spec) && c.GetState() != runtime.ContainerState_CONTAINER_RUNNING {
				continue
			}
			if e, ok := s.entryOf(spec, ref); ok {
				return podImage{e.Root.Digest, e.ImageID, isResolved(spec)}, nil
			}
		}
	}
	return podImage{}, nil
}

func isResolved(spec *runtime.ImageSpec) bool {
	_, without := spec.GetAnnotations()[unresolved]
	return !without
}

// containersOf returns the containers of all sandboxes of a pod, as upstream has them.
func (s *base) containersOf(ctx context.Context, pod policy.Pod) (all []*runtime.Container, _ error) {
	if pod.UID == "" {
		return nil, nil
	}
	sandboxes, err := s.runtimes.ListPodSandbox(untraced(ctx), &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list the sandboxes of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	for _, sb := range sandboxes.GetItems() {
		if sb.GetMetadata().GetUid() != pod.UID {
			continue
		}
		resp, err := s.runtimes.ListContainers(untraced(ctx), &runtime.ListContainersRequest{Filter: &runtime.ContainerFilter{PodSandboxId: sb.GetId()}})
		if err != nil {
			return nil, fmt.Errorf("list the containers of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		all = append(all, resp.GetContainers()...)
	}
	return all, nil
}

// withID returns the image of a container with its ID, and with the name that the caller gave.
func withID(c *runtime.Container) *runtime.ImageSpec {
	spec := proto.CloneOf(c.GetImage())
	for _, name := range []string{c.GetImageId(), c.GetImageRef()} {
		if _, err := digest.Parse(name); err == nil && spec != nil {
			spec.UserSpecifiedImage = cmp.Or(specifiedBy(spec), spec.GetImage())
			spec.Image = name
			break
		}
	}
	return spec
}

// entryOf returns the entry of an image of a container, if its name is a normalized reference: that of the tag, or else of the newest
// digest of the repository. ok is false if not.
func (s *base) entryOf(spec *runtime.ImageSpec, ref string) (_ imagepin.Entry, ok bool) {
	if normalized(specifiedBy(spec)) != ref {
		return imagepin.Entry{}, false
	}
	named, err := reference.ParseNamed(ref)
	if err != nil {
		return imagepin.Entry{}, false
	}
	found := s.Store.ByID(digest.Digest(spec.GetImage()))
	for _, d := range s.Store.FindDamaged(spec.GetImage()) {
		found = append(found, d.Entry)
	}
	found = slices.DeleteFunc(found, func(e imagepin.Entry) bool { return !imagepin.InRepository(e.Ref, named.Name()) })
	if len(found) == 0 {
		return imagepin.Entry{}, false
	}
	return slices.MaxFunc(found, func(a, b imagepin.Entry) int {
		return cmp.Or(order.Bool(a.Ref == ref, b.Ref == ref), a.ReadyAt.Compare(b.ReadyAt))
	}), true
}

// decideNew decides what a container runs from images whose tags have no pin for the revision of its pod.
func (s *containers) decideNew(ctx context.Context, images []containerImage, pod policy.Pod, t runtimeplatform.Target) error {
	for i := range images {
		if !images[i].Unpinned {
			continue
		}
		if err := s.decideNewImage(ctx, &images[i], pod, t); err != nil {
			return err
		}
	}
	return nil
}

// decideNewImage is decideNew for one image. If the pod has an image of the tag, the container runs that one: the caller may not have
// known the pod, such as kubelet after a restart. Otherwise the pod was given the image without an answer of the registry to the tag. The
// use makes no pin then, so that the next start asks again.
func (s *containers) decideNewImage(ctx context.Context, w *containerImage, pod policy.Pod, t runtimeplatform.Target) error {
	now, err := s.rootWithoutPull(ctx, w.Ref.String(), pod, w.entry, w.New)
	if err != nil || now.resolved && (now.id == w.entry.ImageID || now.root == w.Root.Digest) {
		return err
	}
	if now.resolved {
		for _, e := range decide.OfDigest(s.Store, w.Ref, now.root) {
			if e.Target == t {
				w.entry = e
				w.Used, err = s.Decider.Use(s.namespaced(ctx), decide.Use{Image: byDigest(e), Root: e.Root, Ref: w.Ref, InRepository: true, Pod: pod})
				return err
			}
		}
	}
	w.unresolved = true
	log.G(ctx).WithFields(log.Fields{"ref": w.Ref.String(), "digest": w.Root.Digest, "scope": string(w.Scope)}).
		Warn("no registry has resolved the tag of a new revision, the container runs the image on the node without a pin")
	return nil
}
