package integration

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// rig is what most tests need: a registry with a sandbox image, and a node that uses it. Its methods fail the test where the
// node does not do as asked.
type rig struct {
	*node.Node
	t   *testing.T
	ctx context.Context
	reg *registry.Registry
}

// newRig starts a registry and a node, with the registry's sandbox image unless the options name one.
func newRig(t *testing.T, opts node.Options) *rig {
	t.Helper()
	r := &rig{t: t, ctx: testkit.Context(t), reg: testkit.Registry(t)}
	pause := testkit.PushPause(t, r.reg)
	if opts.SandboxImage == "" {
		opts.SandboxImage = pause
	}
	r.Node = testkit.Node(t, opts)
	return r
}

// in is the same rig for a subtest.
func (r *rig) in(t *testing.T) *rig {
	sub := *r
	sub.t, sub.ctx = t, testkit.Context(t)
	return &sub
}

// push puts an index of App images for the platforms under "repo:tag" and returns the full reference and that by digest.
func (r *rig) push(ref string, opts images.Options, platforms ...string) (tag, digest string) {
	r.t.Helper()
	return r.pushed(ref, testkit.Push(r.t, r.reg, ref, testkit.AppIndex(r.t, opts, platforms...)))
}

// pushImage is push for a single image without an index.
func (r *rig) pushImage(ref string, img v1.Image) (tag, digest string) {
	r.t.Helper()
	return r.pushed(ref, testkit.Push(r.t, r.reg, ref, img))
}

func (r *rig) pushed(ref string, d v1.Hash) (tag, digest string) {
	repo, _, _ := strings.Cut(ref, ":")
	return r.reg.Ref(ref), r.reg.Ref(repo + "@" + d.String())
}

func (r *rig) pull(ref, handler string) string {
	r.t.Helper()
	id, err := r.Pull(r.ctx, ref, handler)
	if err != nil {
		r.t.Fatalf("pulling %s for handler %q: %v", ref, handler, err)
	}
	return id
}

func (r *rig) status(ref, handler string) *cri.Image {
	r.t.Helper()
	img, err := r.ImageStatus(r.ctx, ref, handler)
	if err != nil {
		r.t.Fatalf("ImageStatus %s, handler %q: %v", ref, handler, err)
	}
	return img
}

// list gives CRI's images by ID, without the sandbox image.
func (r *rig) list() map[string]*cri.Image {
	r.t.Helper()
	all, err := r.ListImages(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	byID := make(map[string]*cri.Image)
	for _, img := range all {
		if !slices.Contains(img.RepoTags, r.Options().SandboxImage) {
			byID[img.Id] = img
		}
	}
	return byID
}

// wantNames fails the test unless an image is listed with just these tags and digests; with none of either, unless it is not listed.
func (r *rig) wantNames(id string, tags, digests []string) {
	r.t.Helper()
	img := r.list()[id]
	slices.Sort(tags)
	slices.Sort(digests)
	if !slices.Equal(img.GetRepoTags(), tags) || !slices.Equal(img.GetRepoDigests(), digests) {
		r.t.Errorf("image %s is listed with tags %q and digests %q, not %q and %q", id, img.GetRepoTags(), img.GetRepoDigests(), tags, digests)
	}
}

func (r *rig) remove(ref, handler string) {
	r.t.Helper()
	if err := r.RemoveImage(r.ctx, ref, handler); err != nil {
		r.t.Fatalf("RemoveImage %s, handler %q: %v", ref, handler, err)
	}
}

func (r *rig) pod(handler string) *node.Pod {
	r.t.Helper()
	p, err := r.RunPod(r.ctx, node.PodOptions{Handler: handler})
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func (r *rig) removePod(p *node.Pod) {
	r.t.Helper()
	if err := r.RemovePod(r.ctx, p); err != nil {
		r.t.Fatal(err)
	}
}

// wantLine runs a container in a pod and fails the test unless it prints the line.
func (r *rig) wantLine(p *node.Pod, opts node.ContainerOptions, line string) *node.Container {
	r.t.Helper()
	c, got, err := r.RunContainer(r.ctx, p, opts)
	if err != nil {
		r.t.Fatalf("a container of %s (%s) in a pod of handler %q: %v", opts.Image, opts.UserImage, p.Handler, err)
	}
	if got != line {
		r.t.Errorf("a container of %s (%s) in a pod of handler %q printed %q, not %q", opts.Image, opts.UserImage, p.Handler, got, line)
	}
	return c
}

// wantRun is wantLine in a pod of its own, which is gone after.
func (r *rig) wantRun(handler, image, line string) {
	r.t.Helper()
	p := r.pod(handler)
	r.wantLine(p, node.ContainerOptions{Image: image}, line)
	r.removePod(p)
}

// wantRequests fails the test unless these and no other requests were made since the last call of it. A request is written
// "HEAD manifest" or "GET blob"; their order does not matter.
func (r *rig) wantRequests(why string, want ...string) {
	r.t.Helper()
	got := []string{}
	for _, q := range r.reg.Requests() {
		got = append(got, q.Method+" "+string(q.Kind))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.t.Errorf("%s asked the registry %q, not %q:\n%s", why, got, want, r.reg.Dump())
	}
	r.reg.Reset()
}

// offline says which requests the registry got although nothing should have been asked.
func (r *rig) offline(why string) {
	r.t.Helper()
	r.wantRequests(why)
}

// crash kills containerd and starts it again, with other options where change is not nil.
func (r *rig) crash(change func(*node.Options)) {
	r.t.Helper()
	if err := r.Kill9(); err != nil {
		r.t.Fatal(err)
	}
	if err := r.Restart(r.ctx, change); err != nil {
		r.t.Fatal(err)
	}
}

// line is what a container of an App image for a platform prints.
func line(opts images.Options, platform string) string {
	opts.Platform = platform
	return opts.Line(0)
}

// nsctx is a context for containerd's own API.
func nsctx(ctx context.Context) context.Context { return namespaces.WithNamespace(ctx, node.Namespace) }

func mustDigest(t *testing.T, s string) digest.Digest {
	t.Helper()
	d, err := digest.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// eventually waits until something is so that containerd does not wait for itself.
func (r *rig) eventually(what string, so func() bool) {
	r.t.Helper()
	testkit.Eventually(r.t, what, func(context.Context) (bool, error) { return so(), nil })
}
