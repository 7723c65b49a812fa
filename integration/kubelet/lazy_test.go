package kubelet

import (
	"fmt"
	"os"
	"testing"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/lazy"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// ballast is the number of bytes in a lazy image that no container reads.
const ballast = 8 << 20

// TestLazy runs pods of one image in the default class and in a class with a lazily pulling snapshotter, in both
// orders. Lazy pods start before their layers are downloaded. Pods keep running after a kill of containerd and can
// restart. New pods run after a kill of containerd and of the snapshotter. `make test-lazy` has more tests of such a
// snapshotter.
func TestLazy(t *testing.T) {
	t.Parallel()
	for _, gate := range []bool{false, true} {
		t.Run(fmt.Sprintf("gate=%t", gate), func(t *testing.T) {
			t.Parallel()
			testLazy(t, gate)
		})
	}
}

// newLazyRig starts a node with a lazily pulling snapshotter.
func newLazyRig(t *testing.T, name string, kubelet func(*lazy.Snapshotter) cluster.KubeletOptions) (*kubeletRig, *lazy.Snapshotter) {
	t.Helper()
	sn, err := lazy.NewSnapshotter()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // runs after the cleanup of the node
		if t.Failed() {
			t.Logf("the end of the snapshotter's log:\n%s", sn.LogTail(20))
		}
		if err := sn.Close(); err != nil {
			t.Errorf("close the snapshotter: %v", err)
		}
	})
	if err := sn.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := node.Options{Extra: sn.Config(), Handlers: []node.Handler{{Name: lazyClass, Snapshotter: lazy.SnapshotterName}}}
	r := newRigWith(t, name, n, func(n *node.Node) (cluster.KubeletOptions, error) {
		return kubelet(sn), os.Symlink(n.Address(), sn.Containerd())
	})
	return r, sn
}

func testLazy(t *testing.T, gate bool) {
	r, sn := newLazyRig(t, fmt.Sprintf("lazy-%t", gate), func(*lazy.Snapshotter) cluster.KubeletOptions { return cluster.KubeletOptions{Gate: gate} })
	var pods []*core.Pod
	lines := map[string]string{}
	run := func(name, class, ref string, opts images.Options) *core.Pod {
		t.Helper()
		p := r.pod(name, class, ref, core.PullIfNotPresent)
		r.create(p)
		lines[p.Name] = line(class, opts, 0)
		return r.wantLine(p, lines[p.Name])
	}
	for i, order := range [][]string{{"", lazyClass}, {lazyClass, ""}} {
		opts := images.Options{Version: title(order[0]) + "-first", Random: []images.Random{{Size: ballast, Seed: uint64(i)}}}
		ref, layers := r.pushLazy("app/"+opts.Version+":v1", opts)
		for _, class := range order {
			if err := r.GC(r.Ctx); err != nil { // removes the layers that were downloaded for the other class
				t.Fatal(err)
			}
			r.Reg.Reset()
			pods = append(pods, run(opts.Version+"-"+title(class), class, ref, opts))
			if class == lazyClass {
				r.wantLazy(layers)
			}
		}
	}
	if err := r.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := r.Restart(r.Ctx, nil); err != nil {
		t.Fatal(err)
	}
	opts := images.Options{Version: "after", Random: []images.Random{{Size: ballast, Seed: 2}}}
	ref, layers := r.pushLazy("app/after:v1", opts)
	r.Reg.Reset()
	run("after-kill-lazy", lazyClass, ref, opts)
	r.wantLazy(layers)
	for _, p := range pods {
		now := r.waitPod(p, "still runs", running)
		if a, b := now.Status.ContainerStatuses[0], p.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID {
			t.Errorf("pod %s: got container %s, want %s", p.Name, a.ContainerID, b.ContainerID)
		}
		r.stop(now)
		r.wantLog(r.waitRestart(now), 1, lines[p.Name])
	}

	if err := sn.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := sn.Start(r.Ctx); err != nil {
		t.Fatal(err)
	}
	run("after-kill-of-snapshotter", lazyClass, ref, opts)
}

// TestLazyPullSecret runs a lazy pod of a private image with a pull secret. kubelet sends image calls to the
// snapshotter, which forwards them and reads layers with the credential of the pull. A pod without the secret does not
// run.
func TestLazyPullSecret(t *testing.T) {
	t.Parallel()
	r, _ := newLazyRig(t, "lazy-secret", func(sn *lazy.Snapshotter) cluster.KubeletOptions {
		return cluster.KubeletOptions{Config: map[string]any{"imageServiceEndpoint": "unix://" + sn.Address()}}
	})
	r.Reg.SetAuth(&registry.Auth{
		Bearer: true, Public: []string{"pause"},
		Users: map[string]registry.User{"alice": {Password: "secret", Repositories: []string{"private/*"}}},
	})
	secret := r.k.Name + "-alice"
	r.secret(secret, "alice", "secret")
	opts := images.Options{Version: "private", Random: []images.Random{{Size: ballast}}}
	ref, layers := r.pushLazy("private/app:v1", opts)
	for _, class := range []string{"", lazyClass} {
		if err := r.GC(r.Ctx); err != nil {
			t.Fatal(err)
		}
		r.Reg.Reset()
		p := r.pod("with-"+title(class), class, ref, core.PullIfNotPresent)
		p.Spec.ImagePullSecrets = []core.LocalObjectReference{{Name: secret}}
		r.create(p)
		r.wantLine(p, line(class, opts, 0))
		if class == lazyClass {
			r.wantLazy(layers)
		}
	}
	// These pods come last, because the snapshotter keeps the credential of the last pull of a reference, even if the
	// pull had none.
	for _, class := range []string{"", lazyClass} {
		p := r.pod("without-"+title(class), class, ref, core.PullIfNotPresent)
		r.create(p)
		r.waitPod(p, "cannot pull its image", waiting("ErrImagePull", "ImagePullBackOff"))
	}
}

// pushLazy pushes an index of eStargz images to "repo:tag". It returns the full reference and the digests of the layers
// for this machine's platform.
func (r *kubeletRig) pushLazy(ref string, opts images.Options) (string, map[string]bool) {
	r.T.Helper()
	idx, err := lazy.StargzIndex(r.Ctx, opts, images.HostPlatform(), foreign)
	if err != nil {
		r.T.Fatal(err)
	}
	if _, err := r.Reg.Push(ref, idx); err != nil {
		r.T.Fatal(err)
	}
	layers, err := lazy.StargzLayers(r.Ctx, opts)
	if err != nil {
		r.T.Fatal(err)
	}
	all := map[string]bool{}
	for _, l := range layers {
		all[l.String()] = true
	}
	return r.Reg.Ref(ref), all
}

// wantLazy fails the test unless the layers were read only in ranges, and at most ballast bytes of them.
func (r *kubeletRig) wantLazy(layers map[string]bool) {
	r.T.Helper()
	ranges, bytes := 0, int64(0)
	for _, q := range r.Reg.Requests() {
		switch {
		case q.Method != "GET" || !layers[q.Reference]:
		case q.Range == "":
			r.T.Errorf("got a request for a whole layer: %s", q)
		default:
			ranges++
			bytes += q.Bytes
		}
	}
	if ranges == 0 || bytes > ballast {
		r.T.Errorf("got %d bytes in %d ranges, want at most %d bytes in at least 1:\n%s", bytes, ranges, ballast, r.Reg.Dump())
	}
}
