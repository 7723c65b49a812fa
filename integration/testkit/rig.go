package testkit

import (
	"context"
	"errors"
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
)

// Rig is a registry with a sandbox image, and a node that uses it. Its methods fail the test if a call fails.
type Rig struct {
	*node.Node
	T   *testing.T
	Ctx context.Context
	Reg *registry.Registry
}

// NewRig starts a registry and a node. The node uses the sandbox image of the registry unless the options name one.
func NewRig(t *testing.T, opts node.Options) *Rig {
	t.Helper()
	r := &Rig{T: t, Ctx: Context(t), Reg: Registry(t)}
	pause := PushPause(t, r.Reg)
	if opts.SandboxImage == "" {
		opts.SandboxImage = pause
	}
	r.Node = Node(t, opts)
	return r
}

// In returns the rig for a subtest.
func (r *Rig) In(t *testing.T) *Rig {
	sub := *r
	sub.T, sub.Ctx = t, Context(t)
	return &sub
}

// Push puts an index of App images for the platforms under "repo:tag" and returns the full reference and that by digest.
func (r *Rig) Push(ref string, opts images.Options, platforms ...string) (tag, digest string) {
	r.T.Helper()
	return r.Pushed(ref, Push(r.T, r.Reg, ref, AppIndex(r.T, opts, platforms...)))
}

// PushImage is [Rig.Push] for an image without an index.
func (r *Rig) PushImage(ref string, img v1.Image) (tag, digest string) {
	r.T.Helper()
	return r.Pushed(ref, Push(r.T, r.Reg, ref, img))
}

// Pushed returns the references by tag and by digest of what was pushed under "repo:tag".
func (r *Rig) Pushed(ref string, d v1.Hash) (tag, digest string) {
	repo, _, _ := strings.Cut(ref, ":")
	return r.Reg.Ref(ref), r.Reg.Ref(repo + "@" + d.String())
}

// MustPull pulls an image and returns its ID.
func (r *Rig) MustPull(ref, handler string) string {
	r.T.Helper()
	id, err := r.Pull(r.Ctx, ref, handler)
	if err != nil {
		r.T.Fatalf("pulling %s for handler %q: %v", ref, handler, err)
	}
	return id
}

// MustStatus returns the answer of ImageStatus, or nil.
func (r *Rig) MustStatus(ref, handler string) *cri.Image {
	r.T.Helper()
	img, err := r.ImageStatus(r.Ctx, ref, handler)
	if err != nil {
		r.T.Fatalf("ImageStatus %s, handler %q: %v", ref, handler, err)
	}
	return img
}

// Listed returns the images that the CRI lists by ID, without the sandbox image.
func (r *Rig) Listed() map[string]*cri.Image {
	r.T.Helper()
	all, err := r.ListImages(r.Ctx)
	if err != nil {
		r.T.Fatal(err)
	}
	byID := make(map[string]*cri.Image)
	for _, img := range all {
		if !slices.Contains(img.RepoTags, r.Options().SandboxImage) {
			byID[img.Id] = img
		}
	}
	return byID
}

// MustRemove removes an image.
func (r *Rig) MustRemove(ref, handler string) {
	r.T.Helper()
	if err := r.RemoveImage(r.Ctx, ref, handler); err != nil {
		r.T.Fatalf("RemoveImage %s, handler %q: %v", ref, handler, err)
	}
}

// MustPod runs a pod sandbox for a handler.
func (r *Rig) MustPod(handler string) *node.Pod {
	r.T.Helper()
	p, err := r.RunPod(r.Ctx, node.PodOptions{Handler: handler})
	if err != nil {
		r.T.Fatal(err)
	}
	return p
}

// MustRemovePod removes a pod sandbox.
func (r *Rig) MustRemovePod(p *node.Pod) {
	r.T.Helper()
	if err := r.RemovePod(r.Ctx, p); err != nil {
		r.T.Fatal(err)
	}
}

// KillAndRestart kills containerd and starts it again, with changed options if change is not nil.
func (r *Rig) KillAndRestart(change func(*node.Options)) {
	r.T.Helper()
	if err := r.Kill9(); err != nil {
		r.T.Fatal(err)
	}
	if err := r.Restart(r.Ctx, change); err != nil {
		r.T.Fatal(err)
	}
}

// NSContext returns a context for containerd's own API.
func NSContext(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, node.Namespace)
}

// MustDigest parses a digest.
func MustDigest(t *testing.T, s string) digest.Digest {
	t.Helper()
	d, err := digest.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Collect runs containerd's garbage collector.
func (r *Rig) Collect() {
	r.T.Helper()
	if err := r.GC(r.Ctx); err != nil {
		r.T.Fatal(err)
	}
}

// ForgetFailedPulls frees what failed pulls have fetched, so that the next pull fetches all.
func (r *Rig) ForgetFailedPulls() {
	r.T.Helper()
	ctx, manager := NSContext(r.Ctx), r.Client().LeasesService()
	all, err := manager.List(ctx, `labels."io.imagepin.lease"==resume`)
	for _, l := range all {
		err = errors.Join(err, manager.Delete(ctx, l))
	}
	if err != nil {
		r.T.Fatal(err)
	}
	r.Collect()
}

// MustState returns the state of the node.
func (r *Rig) MustState() *node.State {
	r.T.Helper()
	s, err := r.State(r.Ctx)
	if err != nil {
		r.T.Fatal(err)
	}
	return s
}

// OnBoth runs a test on stock containerd and on containerd with imagepin.
func OnBoth(t *testing.T, test func(t *testing.T, binary string)) {
	for _, binary := range []string{node.Stock, node.Ours} {
		t.Run(binary, func(t *testing.T) { test(t, binary) })
	}
}
