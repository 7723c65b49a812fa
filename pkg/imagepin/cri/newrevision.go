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
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// unresolved is the annotation of an image in the request to upstream, if the tag of a new revision had to be resolved first and no
// registry has resolved it. The container says nothing about the digest of its revision.
const unresolved = imagepin.LabelPrefix + "unresolved"

// running is the digest that a pod has for a reference. The zero value means that it has none.
type running struct {
	root digest.Digest
	// resolved reports that the digest may become the pin of the revision.
	resolved bool
}

// rootWithoutPull returns the digest that a pod of a new revision runs although its tag is not resolved: that which a container of the
// pod has, or the image on the node if it was imported, or if kubelet must not pull it. It returns none if the tag has to be resolved. e
// is the image on the node.
//
// kubelet asks for an image whenever one of the pod's containers starts. A pod does not change its build by a crash.
func (s *base) rootWithoutPull(ctx context.Context, ref string, pod policy.Pod, e imagepin.Entry) (running, error) {
	if now, err := s.podRuns(ctx, ref, pod); err != nil || now.root != "" {
		return now, err
	}
	if e.Source == imagepin.SourceImported || s.Decider.NeverPulls(ctx, ref, pod) {
		return running{e.Root.Digest, true}, nil
	}
	return running{}, nil
}

// podRuns returns the digest that a container of a pod, in any state, has for a normalized reference. Of several, the container that was
// created last decides. One whose tag was not resolved does not count, except for the image volume of a running container: kubelet asks
// for it at each sync of the pod.
func (s *base) podRuns(ctx context.Context, ref string, pod policy.Pod) (running, error) {
	containers, err := s.containersOf(ctx, pod)
	if err != nil {
		return running{}, err
	}
	slices.SortFunc(containers, func(a, b *runtime.Container) int { return cmp.Compare(b.GetCreatedAt(), a.GetCreatedAt()) })
	for _, c := range containers {
		if spec := withID(c); isResolved(spec) {
			if root := s.rootOf(spec, ref); root != "" {
				return running{root, true}, nil
			}
		}
		volumes, err := s.imageVolumes(ctx, c.GetId())
		if err != nil {
			return running{}, err
		}
		for _, spec := range volumes {
			if !isResolved(spec) && c.GetState() != runtime.ContainerState_CONTAINER_RUNNING {
				continue
			}
			if root := s.rootOf(spec, ref); root != "" {
				return running{root, isResolved(spec)}, nil
			}
		}
	}
	return running{}, nil
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

// rootOf returns the digest of an image of a container, if its name is a normalized reference. It returns "" if not.
func (s *base) rootOf(spec *runtime.ImageSpec, ref string) digest.Digest {
	if normalized(specifiedBy(spec)) != ref {
		return ""
	}
	named, err := reference.ParseNamed(ref)
	if err != nil {
		return ""
	}
	found := s.Store.ByID(digest.Digest(spec.GetImage()))
	for _, d := range s.Store.FindDamaged(spec.GetImage()) {
		found = append(found, d.Entry)
	}
	for _, e := range found {
		if imagepin.InRepository(e.Ref, named.Name()) {
			return e.Root.Digest
		}
	}
	return ""
}

// markUnresolved marks the images of a container that their pod runs without a pin, see runsWithoutPin.
func (s *containers) markUnresolved(ctx context.Context, images []containerImage, pod policy.Pod) (err error) {
	for i, w := range images {
		if images[i].unresolved, err = s.runsWithoutPin(ctx, w, pod); err != nil {
			return err
		}
	}
	return nil
}

// runsWithoutPin reports whether a container runs an image that its pod was given without an answer of the registry to the tag of a new
// revision. The use makes no pin then, so that the next start asks again.
func (s *containers) runsWithoutPin(ctx context.Context, w containerImage, pod policy.Pod) (bool, error) {
	if !w.New {
		return false, nil
	}
	now, err := s.rootWithoutPull(ctx, w.Ref.String(), pod, w.entry)
	if err != nil || now.resolved && now.root == w.Root.Digest {
		return false, err
	}
	log.G(ctx).WithFields(log.Fields{"ref": w.Ref.String(), "digest": w.Root.Digest, "scope": string(w.Scope)}).
		Warn("no registry has resolved the tag of a new revision, the container runs the image on the node without a pin")
	return true, nil
}
