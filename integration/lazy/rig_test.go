package lazy

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

const (
	// lazyHandler is on the lazily pulling snapshotter, eagerHandler on overlayfs.
	lazyHandler  = "lazy"
	eagerHandler = node.DefaultHandler
	snapshotter  = SnapshotterName
	// foreign is a platform that is not this machine's.
	foreign = "linux/s390x"
	// ballast is how much of an image no container ever reads.
	ballast = 8 << 20
)

func TestMain(m *testing.M) { testkit.Main(m) }

// rig is a registry, a lazy snapshotter, and a containerd that uses both.
type rig struct {
	*node.Node
	t   *testing.T
	ctx context.Context
	reg *registry.Registry
	sn  *Snapshotter
}

func newRig(t *testing.T, opts node.Options) *rig {
	t.Helper()
	r := &rig{t: t, ctx: testkit.Context(t), reg: testkit.Registry(t)}
	opts.LogLevel = "info"
	opts.SandboxImage = testkit.PushPause(t, r.reg)
	var err error
	if r.sn, err = NewSnapshotter(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.clean) // after the node
	r.startSnapshotter()
	opts.Handlers = append(opts.Handlers, node.Handler{Name: lazyHandler, Snapshotter: snapshotter})
	opts.Extra = r.sn.Config() + opts.Extra
	r.Node = testkit.Node(t, opts)
	if err := os.Symlink(r.Address(), r.sn.Containerd()); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) startSnapshotter() {
	r.t.Helper()
	if err := r.sn.Start(r.ctx); err != nil {
		r.t.Fatal(err)
	}
}

// reconnected waits until containerd has found the snapshotter again: it tries with pauses, as gRPC does.
func (r *rig) reconnected() {
	r.t.Helper()
	testkit.Eventually(r.t, "containerd reaches the snapshotter again", func(ctx context.Context) (bool, error) {
		none := func(context.Context, snapshots.Info) error { return nil }
		return r.Client().SnapshotService(snapshotter).Walk(namespaces.WithNamespace(ctx, node.Namespace), none) == nil, nil
	})
}

func (r *rig) clean() {
	if r.t.Failed() {
		r.t.Logf("the end of the snapshotter's log:\n%s", r.sn.LogTail(20))
	}
	if err := r.sn.Close(); err != nil {
		r.t.Errorf("cleaning up after the snapshotter: %v", err)
	}
}

// options of an image whose greater part is never read.
func options(version string) images.Options {
	return images.Options{Version: version, Random: []images.Random{{Files: 4, Size: ballast}}}
}

// push puts an index of eStargz images under "repo:tag" and returns the full reference.
func (r *rig) push(ref string, opts images.Options) string {
	r.t.Helper()
	idx, err := StargzIndex(r.ctx, opts, images.HostPlatform(), foreign)
	if err != nil {
		r.t.Fatal(err)
	}
	testkit.Push(r.t, r.reg, ref, idx)
	return r.reg.Ref(ref)
}

// layers of this machine's image below a reference.
func (r *rig) layers(opts images.Options) []v1.Hash {
	r.t.Helper()
	all, err := StargzLayers(r.ctx, opts)
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

// run runs a container with the calls of kubelet and leaves it.
func (r *rig) run(handler, ref, line string) *node.KubeletResult {
	r.t.Helper()
	res, err := r.RunAsKubelet(r.ctx, node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: ref})
	if err != nil {
		r.t.Fatalf("a pod of handler %s: %v", handler, err)
	}
	if res.Line != line {
		r.t.Errorf("a pod of handler %s printed %q, not %q", handler, res.Line, line)
	}
	return res
}

func (r *rig) remove(p *node.Pod) {
	r.t.Helper()
	if err := r.RemovePod(r.ctx, p); err != nil {
		r.t.Fatal(err)
	}
}

// wantLazy fails the test unless the layers were read in ranges alone, and little of them.
func (r *rig) wantLazy(layers []v1.Hash) {
	r.t.Helper()
	r.wantNoWholeLayer(layers)
	ranges, bytes := 0, int64(0)
	for _, q := range r.layerRequests(layers) {
		if q.Range != "" {
			ranges++
			bytes += q.Bytes
		}
	}
	if ranges == 0 {
		r.t.Errorf("nothing was read lazily:\n%s", r.reg.Dump())
	}
	if bytes > ballast {
		r.t.Errorf("%d bytes were read, as if all of it had been:\n%s", bytes, r.reg.Dump())
	}
}

// wantNoWholeLayer fails the test if a layer was asked for as a whole.
func (r *rig) wantNoWholeLayer(layers []v1.Hash) {
	r.t.Helper()
	for _, q := range r.layerRequests(layers) {
		if q.Method == "GET" && q.Range == "" {
			r.t.Errorf("a whole layer was asked for: %s", q)
		}
	}
}

func (r *rig) layerRequests(layers []v1.Hash) []registry.Request {
	return slices.DeleteFunc(r.reg.Requests(), func(q registry.Request) bool {
		return !slices.ContainsFunc(layers, func(h v1.Hash) bool { return h.String() == q.Reference })
	})
}

// check runs `imagepin check`, which fails where anything is not as it is recorded.
func (r *rig) check() {
	r.t.Helper()
	cmd := exec.CommandContext(r.ctx, filepath.Join(node.BinDir(), "imagepin"), "--address", r.Address(), "check")
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Errorf("imagepin check: %v\n%s", err, out)
	}
}

// wantBlobs fails the test unless the content store has all of the layers, or none.
func (r *rig) wantBlobs(why string, layers []v1.Hash, here bool) {
	r.t.Helper()
	state := testkit.State(r.t, r.Node)
	for _, l := range layers {
		if _, ok := state.Content[node.Namespace+"/"+l.String()]; ok != here {
			r.t.Errorf("%s: layer %s in the content store: %t, not %t", why, l, ok, here)
		}
	}
}

// layersIn are the snapshots of layers in a snapshotter, without those of containers.
func (r *rig) layersIn(snapshotter string) []string {
	r.t.Helper()
	var found []string
	for key := range testkit.State(r.t, r.Node).Snapshots {
		if strings.HasPrefix(key, node.Namespace+"/"+snapshotter+"/sha256:") {
			found = append(found, key)
		}
	}
	return found
}

func (r *rig) gc() {
	r.t.Helper()
	if err := r.GC(r.ctx); err != nil {
		r.t.Fatal(err)
	}
}
