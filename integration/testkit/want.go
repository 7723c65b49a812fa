package testkit

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// WantState fails the test unless the node has the same state as before. RemoveImage collects garbage before it returns, so
// that a test needs no wait.
func (r *Rig) WantState(when string, before *node.State) {
	r.T.Helper()
	if d := node.Diff(before, r.MustState()); d != "" {
		r.T.Errorf("%s the node's state differs from before (+ is leaked, - is lost):\n%s", when, d)
	}
}

// ImagesByID returns all images that the CRI lists by ID.
func (r *Rig) ImagesByID() map[string]*cri.Image {
	r.T.Helper()
	all, err := r.ListImages(r.Ctx)
	if err != nil {
		r.T.Fatal(err)
	}
	m := make(map[string]*cri.Image)
	for _, i := range all {
		m[i.Id] = i
	}
	return m
}

// WantSameImages fails the test unless two lists of images by ID are equal.
func WantSameImages(t *testing.T, when string, want, got map[string]*cri.Image) {
	t.Helper()
	for id := range want {
		if !proto.Equal(want[id], got[id]) {
			t.Errorf("%s image %s is listed as %v, not as %v", when, id, got[id], want[id])
		}
	}
	for id := range got {
		if want[id] == nil {
			t.Errorf("%s an image is listed that was not before: %v", when, got[id])
		}
	}
}

// WithoutSpec returns images without their spec, which stock containerd does not set, to compare them.
func WithoutSpec(all map[string]*cri.Image) map[string]*cri.Image {
	m := make(map[string]*cri.Image)
	for id, i := range all {
		i = proto.CloneOf(i)
		i.Spec = nil
		slices.Sort(i.RepoTags)
		slices.Sort(i.RepoDigests)
		m[id] = i
	}
	return m
}

// WantNames fails the test unless an image is listed with exactly these tags and digests. Without any, the image must not be
// listed.
func (r *Rig) WantNames(id string, tags, digests []string) {
	r.T.Helper()
	img := r.Listed()[id]
	slices.Sort(tags)
	slices.Sort(digests)
	if !slices.Equal(img.GetRepoTags(), tags) || !slices.Equal(img.GetRepoDigests(), digests) {
		r.T.Errorf("image %s is listed with tags %q and digests %q, not %q and %q", id, img.GetRepoTags(), img.GetRepoDigests(), tags, digests)
	}
}

// WantLine runs a container in a pod and fails the test unless it prints the line.
func (r *Rig) WantLine(p *node.Pod, opts node.ContainerOptions, line string) *node.Container {
	r.T.Helper()
	c, got, err := r.RunContainer(r.Ctx, p, opts)
	if err != nil {
		r.T.Fatalf("a container of %s (%s) in a pod of handler %q: %v", opts.Image, opts.UserImage, p.Handler, err)
	}
	if got != line {
		r.T.Errorf("a container of %s (%s) in a pod of handler %q printed %q, not %q", opts.Image, opts.UserImage, p.Handler, got, line)
	}
	return c
}

// WantRun is [Rig.WantLine] in a pod that it creates and removes.
func (r *Rig) WantRun(handler, image, line string) {
	r.T.Helper()
	p := r.MustPod(handler)
	r.WantLine(p, node.ContainerOptions{Image: image}, line)
	r.MustRemovePod(p)
}

// WantRunIn is [Rig.WantLine] with a container that it removes. A test that runs an image again and again does so in one pod.
func (r *Rig) WantRunIn(p *node.Pod, image, line string) {
	r.T.Helper()
	if err := r.WantLine(p, node.ContainerOptions{Image: image}, line).Remove(r.Ctx); err != nil {
		r.T.Fatal(err)
	}
}

// WantRequests fails the test unless the registry got exactly these requests since the last call, in any order. A request is
// written "HEAD manifest" or "GET blob".
func (r *Rig) WantRequests(why string, want ...string) {
	r.T.Helper()
	got := []string{}
	for _, q := range r.Reg.Requests() {
		got = append(got, q.Method+" "+string(q.Kind))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.T.Errorf("%s: got registry requests %q, want %q:\n%s", why, got, want, r.Reg.Dump())
	}
	r.Reg.Reset()
}

// WantNoRequests fails the test if the registry got a request since the last call.
func (r *Rig) WantNoRequests(why string) {
	r.T.Helper()
	r.WantRequests(why)
}

// Line returns what a container of an App image for a platform prints.
func Line(opts images.Options, platform string) string {
	opts.Platform = platform
	return opts.Line(0)
}
