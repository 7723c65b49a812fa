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

// lazyRig is a registry, a lazy snapshotter, and a containerd that uses both.
type lazyRig struct {
	*testkit.Rig
	sn *Snapshotter
}

func newRig(t *testing.T, opts node.Options) *lazyRig {
	t.Helper()
	r := &lazyRig{Rig: &testkit.Rig{T: t, Ctx: testkit.Context(t), Reg: testkit.Registry(t)}}
	opts.LogLevel = "info"
	opts.SandboxImage = testkit.PushPause(t, r.Reg)
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

func (r *lazyRig) startSnapshotter() {
	r.T.Helper()
	if err := r.sn.Start(r.Ctx); err != nil {
		r.T.Fatal(err)
	}
}

// reconnected waits until containerd has found the snapshotter again: it tries with pauses, as gRPC does.
func (r *lazyRig) reconnected() {
	r.T.Helper()
	testkit.Eventually(r.T, "containerd reaches the snapshotter again", func(ctx context.Context) (bool, error) {
		none := func(context.Context, snapshots.Info) error { return nil }
		return r.Client().SnapshotService(snapshotter).Walk(namespaces.WithNamespace(ctx, node.Namespace), none) == nil, nil
	})
}

func (r *lazyRig) clean() {
	if r.T.Failed() {
		r.T.Logf("the end of the snapshotter's log:\n%s", r.sn.LogTail(20))
	}
	if err := r.sn.Close(); err != nil {
		r.T.Errorf("cleaning up after the snapshotter: %v", err)
	}
}

// options of an image whose greater part is never read.
func options(version string) images.Options {
	return images.Options{Version: version, Random: []images.Random{{Files: 4, Size: ballast}}}
}

// push puts an index of eStargz images under "repo:tag" and returns the full reference.
func (r *lazyRig) push(ref string, opts images.Options) string {
	r.T.Helper()
	idx, err := StargzIndex(r.Ctx, opts, images.HostPlatform(), foreign)
	if err != nil {
		r.T.Fatal(err)
	}
	testkit.Push(r.T, r.Reg, ref, idx)
	return r.Reg.Ref(ref)
}

// layers of this machine's image below a reference.
func (r *lazyRig) layers(opts images.Options) []v1.Hash {
	r.T.Helper()
	all, err := StargzLayers(r.Ctx, opts)
	if err != nil {
		r.T.Fatal(err)
	}
	return all
}

// run runs a container with the calls of kubelet and leaves it.
func (r *lazyRig) run(handler, ref, line string) *node.KubeletResult {
	r.T.Helper()
	res, err := r.RunAsKubelet(r.Ctx, node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: ref})
	if err != nil {
		r.T.Fatalf("a pod of handler %s: %v", handler, err)
	}
	if res.Line != line {
		r.T.Errorf("a pod of handler %s printed %q, not %q", handler, res.Line, line)
	}
	return res
}

func (r *lazyRig) remove(p *node.Pod) {
	r.T.Helper()
	if err := r.RemovePod(r.Ctx, p); err != nil {
		r.T.Fatal(err)
	}
}

// wantLazy fails the test unless the layers were read in ranges alone, and little of them.
func (r *lazyRig) wantLazy(layers []v1.Hash) {
	r.T.Helper()
	r.wantNoWholeLayer(layers)
	ranges, bytes := 0, int64(0)
	for _, q := range r.layerRequests(layers) {
		if q.Range != "" {
			ranges++
			bytes += q.Bytes
		}
	}
	if ranges == 0 {
		r.T.Errorf("nothing was read lazily:\n%s", r.Reg.Dump())
	}
	if bytes > ballast {
		r.T.Errorf("%d bytes were read, as if all of it had been:\n%s", bytes, r.Reg.Dump())
	}
}

// wantNoWholeLayer fails the test if a layer was asked for as a whole.
func (r *lazyRig) wantNoWholeLayer(layers []v1.Hash) {
	r.T.Helper()
	for _, q := range r.layerRequests(layers) {
		if q.Method == "GET" && q.Range == "" {
			r.T.Errorf("a whole layer was asked for: %s", q)
		}
	}
}

func (r *lazyRig) layerRequests(layers []v1.Hash) []registry.Request {
	return slices.DeleteFunc(r.Reg.Requests(), func(q registry.Request) bool {
		return !slices.ContainsFunc(layers, func(h v1.Hash) bool { return h.String() == q.Reference })
	})
}

// check runs `imagepin check`, which fails where anything is not as it is recorded.
func (r *lazyRig) check() {
	r.T.Helper()
	cmd := exec.CommandContext(r.Ctx, filepath.Join(node.BinDir(), "imagepin"), "--address", r.Address(), "check")
	if out, err := cmd.CombinedOutput(); err != nil {
		r.T.Errorf("imagepin check: %v\n%s", err, out)
	}
}

// wantBlobs fails the test unless the content store has all of the layers, or none.
func (r *lazyRig) wantBlobs(why string, layers []v1.Hash, here bool) {
	r.T.Helper()
	state := testkit.State(r.T, r.Node)
	for _, l := range layers {
		if _, ok := state.Content[node.Namespace+"/"+l.String()]; ok != here {
			r.T.Errorf("%s: layer %s in the content store: %t, not %t", why, l, ok, here)
		}
	}
}

// layersIn are the snapshots of layers in a snapshotter, without those of containers.
func (r *lazyRig) layersIn(snapshotter string) []string {
	r.T.Helper()
	var found []string
	for key := range testkit.State(r.T, r.Node).Snapshots {
		if strings.HasPrefix(key, node.Namespace+"/"+snapshotter+"/sha256:") {
			found = append(found, key)
		}
	}
	return found
}

func (r *lazyRig) gc() {
	r.T.Helper()
	if err := r.GC(r.Ctx); err != nil {
		r.T.Fatal(err)
	}
}
