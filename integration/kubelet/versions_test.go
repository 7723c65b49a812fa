package kubelet

import (
	"fmt"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
)

// revisions are the revisions of a workload whose tag has moved.
type revisions struct {
	*kubeletRig
	ref         string
	first       images.Options // the image of revision one
	firstDigest string
	pods        int // that it has run
}

// run runs a pod of a revision with one container for each policy.
func (v *revisions) run(revision, class string, pulls []core.PullPolicy, want images.Options, digest string) {
	v.T.Helper()
	v.pods++
	p := v.pod(fmt.Sprintf("%s-%d", revision, v.pods), class, "", "")
	p.Labels = map[string]string{"pod-template-hash": revision}
	p.Spec.Containers = nil
	for _, pull := range pulls {
		p.Spec.Containers = append(p.Spec.Containers, core.Container{Name: containerOf(pull), Image: v.ref, ImagePullPolicy: pull})
	}
	v.create(p)
	now := v.waitPod(p, "runs", running)
	for _, pull := range pulls {
		v.wantLogOf(now, containerOf(pull), 0, line(class, want, 0))
	}
	for _, c := range now.Status.ContainerStatuses {
		if c.ImageID != digest {
			v.T.Errorf("pod %s, container %s: got imageID %s, want %s", p.Name, c.Name, c.ImageID, digest)
		}
		v.wantInspected(c, class)
	}
	v.delete(p)
}

// all runs a pod of a revision in each class.
func (v *revisions) all(revision string, want images.Options, digest string) {
	// Always and IfNotPresent each come first in a class. Never needs an image that is pulled already.
	v.run(revision, "", []core.PullPolicy{core.PullAlways, core.PullIfNotPresent, core.PullNever}, want, digest)
	v.run(revision, second, []core.PullPolicy{core.PullIfNotPresent, core.PullNever, core.PullAlways}, want, digest)
	v.run(revision, other, []core.PullPolicy{core.PullIfNotPresent, core.PullAlways, core.PullNever}, want, digest)
}

// testVersions runs two revisions of a workload. The tag moves after the first pod of each revision. All pods of a
// revision run one digest with every pull policy and class, and imagepin reports the same images as kubelet.
func (r *kubeletRig) testVersions() {
	first, next, last := images.Options{Version: "first"}, images.Options{Version: "next"}, images.Options{Version: "last"}
	ref, firstDigest := r.push("pinned/app:v1", first)
	v := &revisions{kubeletRig: r, ref: ref, first: first, firstDigest: firstDigest}
	r.revisions = v
	always := []core.PullPolicy{core.PullAlways}
	v.run("one", "", always, first, firstDigest)
	_, nextDigest := r.push("pinned/app:v1", next)
	v.all("one", first, firstDigest)
	v.run("two", "", always, next, nextDigest)
	r.push("pinned/app:v1", last)
	v.all("two", next, nextDigest)
	v.all("one", first, firstDigest)

	var got inspected
	r.imagepin(&got, "inspect", ref)
	for revision, digest := range map[string]string{"one": firstDigest, "two": nextDigest} {
		_, want, _ := strings.Cut(digest, "@")
		if !slices.ContainsFunc(got.Pins, func(p pinned) bool {
			return p.Scope == "workload/default/pod-template-hash="+revision && p.Root.Digest == want
		}) {
			r.T.Errorf("imagepin inspect: no pin of revision %s at %s in %+v", revision, want, got.Pins)
		}
	}
}

// testAway runs pods of the first revision of testVersions while the registry is down.
func (r *kubeletRig) testAway() {
	v := *r.revisions
	v.kubeletRig = r
	r.Reg.Down()
	v.all("one", v.first, v.firstDigest)
}

// wantInspected fails the test unless `imagepin inspect` has a key for the imageID that kubelet reports for a
// container, with the handler of the class, the digest in the imageID and the image ID that the container runs.
func (r *kubeletRig) wantInspected(c core.ContainerStatus, class string) {
	r.T.Helper()
	res, err := r.Runtime().ContainerStatus(r.Ctx, &cri.ContainerStatusRequest{ContainerId: strings.TrimPrefix(c.ContainerID, "containerd://")})
	if err != nil {
		r.T.Fatal(err)
	}
	var got inspected
	r.imagepin(&got, "inspect", c.ImageID)
	_, digest, _ := strings.Cut(c.ImageID, "@")
	if !slices.ContainsFunc(got.Keys, func(k key) bool {
		return k.Ref == c.ImageID && slices.Contains(k.Handlers, handler(class)) &&
			k.Root.Digest == digest && k.ImageID == res.GetStatus().GetImageId()
	}) {
		r.T.Errorf("imagepin inspect: no key of imageID %s for class %s with image ID %s in %+v", c.ImageID, title(class), res.GetStatus().GetImageId(), got.Keys)
	}
}

// inspected is the part of the output of `imagepin inspect -o json` that the tests read.
type inspected struct {
	Keys []key
	Pins []pinned
}

type key struct {
	Ref      string
	Handlers []string
	Root     struct{ Digest string }
	ImageID  string `json:"imageId"`
}

type pinned struct {
	Scope string
	Root  struct{ Digest string }
}
