package kubelet

import (
	"fmt"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
)

// testVersions runs two revisions of a workload, the tag moving after the first pod of each: all pods of a revision run one
// digest, whatever their pull policy and class, and what kubelet reports is what imagepin says.
func (r *kubeletRig) testVersions() {
	first, next, last := images.Options{Version: "first"}, images.Options{Version: "next"}, images.Options{Version: "last"}
	ref, firstDigest := r.push("pinned/app:v1", first)
	i := 0
	// run runs a pod of a revision with a container for each policy.
	run := func(revision, class string, pulls []core.PullPolicy, want images.Options, digest string) {
		r.T.Helper()
		i++
		p := r.pod(fmt.Sprintf("%s-%d", revision, i), class, "", "")
		p.Labels = map[string]string{"pod-template-hash": revision}
		p.Spec.Containers = nil
		for _, pull := range pulls {
			p.Spec.Containers = append(p.Spec.Containers, core.Container{Name: containerOf(pull), Image: ref, ImagePullPolicy: pull})
		}
		r.create(p)
		now := r.waitPod(p, "runs", running)
		for _, pull := range pulls {
			r.wantLogOf(now, containerOf(pull), 0, line(class, want, 0))
		}
		for _, c := range now.Status.ContainerStatuses {
			if c.ImageID != digest {
				r.T.Errorf("pod %s, %s: imageID is %s, not %s", p.Name, c.Name, c.ImageID, digest)
			}
			r.wantInspected(c, class)
		}
		r.delete(p)
	}
	all := func(revision string, want images.Options, digest string) {
		// Each policy comes first in one of the classes, but for Never, which finds what another pod's pull has brought.
		run(revision, "", []core.PullPolicy{core.PullAlways, core.PullIfNotPresent, core.PullNever}, want, digest)
		run(revision, second, []core.PullPolicy{core.PullIfNotPresent, core.PullNever, core.PullAlways}, want, digest)
		run(revision, other, []core.PullPolicy{core.PullIfNotPresent, core.PullAlways, core.PullNever}, want, digest)
	}
	always := []core.PullPolicy{core.PullAlways}
	run("one", "", always, first, firstDigest)
	_, nextDigest := r.push("pinned/app:v1", next)
	all("one", first, firstDigest)
	run("two", "", always, next, nextDigest)
	r.push("pinned/app:v1", last)
	all("two", next, nextDigest)
	all("one", first, firstDigest)

	var said inspected
	r.imagepin(&said, "inspect", ref)
	for revision, digest := range map[string]string{"one": firstDigest, "two": nextDigest} {
		_, want, _ := strings.Cut(digest, "@")
		if !slices.ContainsFunc(said.Pins, func(p pinned) bool {
			return p.Scope == "workload/default/pod-template-hash="+revision && p.Root.Digest == want
		}) {
			r.T.Errorf("imagepin inspect does not say that revision %s means %s: %+v", revision, want, said.Pins)
		}
	}
}

// wantInspected fails the test unless `imagepin inspect` knows the imageID that kubelet reports for a container: as ready for its
// class, of the digest in it, and of the image that the container runs.
func (r *kubeletRig) wantInspected(c core.ContainerStatus, class string) {
	r.T.Helper()
	res, err := r.Runtime().ContainerStatus(r.Ctx, &cri.ContainerStatusRequest{ContainerId: strings.TrimPrefix(c.ContainerID, "containerd://")})
	if err != nil {
		r.T.Fatal(err)
	}
	var said inspected
	r.imagepin(&said, "inspect", c.ImageID)
	_, digest, _ := strings.Cut(c.ImageID, "@")
	if !slices.ContainsFunc(said.Keys, func(k key) bool {
		return k.Ref == c.ImageID && slices.Contains(k.Handlers, handler(class)) && k.State == "ready" &&
			k.Root.Digest == digest && k.ImageID == res.GetStatus().GetImageId()
	}) {
		r.T.Errorf("kubelet reports %s for class %s, container image %s; imagepin inspect says %+v", c.ImageID, title(class), res.GetStatus().GetImageId(), said.Keys)
	}
}

// inspected is the part of `imagepin inspect -o json` that is looked at.
type inspected struct {
	Keys []key
	Pins []pinned
}

type key struct {
	Ref      string
	Handlers []string
	State    string
	Root     struct{ Digest string }
	ImageID  string `json:"imageId"`
}

type pinned struct {
	Scope string
	Root  struct{ Digest string }
}
