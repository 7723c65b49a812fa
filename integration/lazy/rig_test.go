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
	// lazyHandler uses the lazy snapshotter, eagerHandler uses overlayfs.
	lazyHandler  = "lazy"
	eagerHandler = node.DefaultHandler
	snapshotter  = SnapshotterName
	// foreign is a platform that is not this machine's.
	foreign = "linux/s390x"
	// ballast is the size of the files in an image that no container reads.
	ballast = 8 << 20
)

func TestMain(m *testing.M) { testkit.Main(m) }

// lazyRig has a registry, a lazy snapshotter, and a node that uses both.
type lazyRig struct {
	*testkit.Rig
	sn *Snapshotter
}

func newRig(t *testing.T, opts node.Options) *lazyRig {
	t.Helper()
	return newRigWith(t, opts, (*Snapshotter).Config)
}

// newRigWith is newRig with a configuration of the snapshotter in containerd.
func newRigWith(t *testing.T, opts node.Options, config func(*Snapshotter) string) *lazyRig {
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
	opts.Extra = config(r.sn) + opts.Extra
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

// awaitSnapshotter waits until containerd has reconnected to the snapshotter. gRPC retries with a backoff.
func (r *lazyRig) awaitSnapshotter() {
	r.T.Helper()
	testkit.Eventually(r.T, "containerd has reconnected to the snapshotter", func(ctx context.Context) (bool, error) {
		none := func(context.Context, snapshots.Info) error { return nil }
		return r.Client().SnapshotService(snapshotter).Walk(namespaces.WithNamespace(ctx, node.Namespace), none) == nil, nil
	})
}

func (r *lazyRig) clean() {
	if r.T.Failed() {
		r.T.Logf("the end of the snapshotter's log:\n%s", r.sn.LogTail(20))
	}
	if err := r.sn.Close(); err != nil {
		r.T.Errorf("cleaning up the snapshotter: %v", err)
	}
}

// options returns the options of an image of which containers read only a small part.
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

// layers returns the layers of an image with the options.
func (r *lazyRig) layers(opts images.Options) []v1.Hash {
	r.T.Helper()
	all, err := StargzLayers(r.Ctx, opts)
	if err != nil {
		r.T.Fatal(err)
	}
	return all
}

// run runs a container with kubelet's calls and does not remove it.
func (r *lazyRig) run(handler, ref, line string) *node.KubeletResult {
	r.T.Helper()
	res, err := r.RunAsKubelet(r.Ctx, node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: ref})
	if err != nil {
		r.T.Fatalf("running a pod of handler %s: %v", handler, err)
	}
	if res.Line != line {
		r.T.Errorf("a pod of handler %s printed %q, want %q", handler, res.Line, line)
	}
	return res
}

func (r *lazyRig) remove(p *node.Pod) {
	r.T.Helper()
	if err := r.RemovePod(r.Ctx, p); err != nil {
		r.T.Fatal(err)
	}
}

// wantLazy fails the test unless the layers were read in ranges only, and a small part of them.
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
		r.T.Errorf("got no range requests:\n%s", r.Reg.Dump())
	}
	if bytes > ballast {
		r.T.Errorf("range requests read %d bytes, as much as whole layers:\n%s", bytes, r.Reg.Dump())
	}
}

// wantNoWholeLayer fails the test if a whole layer was requested.
func (r *lazyRig) wantNoWholeLayer(layers []v1.Hash) {
	r.T.Helper()
	for _, q := range r.layerRequests(layers) {
		if q.Method == "GET" && q.Range == "" {
			r.T.Errorf("got a request for a whole layer: %s", q)
		}
	}
}

func (r *lazyRig) layerRequests(layers []v1.Hash) []registry.Request {
	return slices.DeleteFunc(r.Reg.Requests(), func(q registry.Request) bool {
		return !slices.ContainsFunc(layers, func(h v1.Hash) bool { return h.String() == q.Reference })
	})
}

// check fails the test if `imagepin check` finds a problem.
func (r *lazyRig) check() {
	r.T.Helper()
	cmd := exec.CommandContext(r.Ctx, filepath.Join(node.BinDir(), "imagepin"), "--address", r.Address(), "check")
	if out, err := cmd.CombinedOutput(); err != nil {
		r.T.Errorf("imagepin check: %v\n%s", err, out)
	}
}

// wantBlobs fails the test unless the content store has all of the layers, or none of them.
func (r *lazyRig) wantBlobs(when string, layers []v1.Hash, want bool) {
	r.T.Helper()
	state := testkit.State(r.T, r.Node)
	for _, l := range layers {
		if _, ok := state.Content[node.Namespace+"/"+l.String()]; ok != want {
			r.T.Errorf("%s: layer %s in the content store: got %t, want %t", when, l, ok, want)
		}
	}
}

// layersIn returns the snapshots of layers in a snapshotter, without those of containers.
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
