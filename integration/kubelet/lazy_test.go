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

// ballast is how much of a lazy image no container ever reads, in bytes.
const ballast = 8 << 20

// TestLazy runs pods of one image in the default class and in one on a lazily pulling snapshotter, in both orders: lazy ones
// start without their layers having been downloaded. They restart, live through a kill of containerd, and new ones run after one
// of the snapshotter. (make test-lazy has the rest of what can happen to such a snapshotter.)
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
	t.Cleanup(func() { // after the node
		if t.Failed() {
			t.Logf("the end of the snapshotter's log:\n%s", sn.LogTail(20))
		}
		if err := sn.Close(); err != nil {
			t.Errorf("cleaning up after the snapshotter: %v", err)
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
			if err := r.GC(r.Ctx); err != nil { // what was downloaded for the other class is no longer here
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
			t.Errorf("pod %s runs container %s, not %s", p.Name, a.ContainerID, b.ContainerID)
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

// TestLazyPullSecret runs a lazy pod of a private image with a pull secret. kubelet is pointed at the snapshotter for images, which
// passes the calls on and so has the pull's credential to read with. A pod without the secret is refused.
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
	// After the others: the snapshotter keeps the credential of the last pull of a reference, be it none.
	for _, class := range []string{"", lazyClass} {
		p := r.pod("without-"+title(class), class, ref, core.PullIfNotPresent)
		r.create(p)
		r.waitPod(p, "is refused", waiting("ErrImagePull", "ImagePullBackOff"))
	}
}

// pushLazy puts an index of eStargz images under "repo:tag" and returns the full reference and this machine's layers.
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

// wantLazy fails the test unless the layers were read in ranges alone, and little of them.
func (r *kubeletRig) wantLazy(layers map[string]bool) {
	r.T.Helper()
	ranges, bytes := 0, int64(0)
	for _, q := range r.Reg.Requests() {
		switch {
		case q.Method != "GET" || !layers[q.Reference]:
		case q.Range == "":
			r.T.Errorf("a whole layer was asked for: %s", q)
		default:
			ranges++
			bytes += q.Bytes
		}
	}
	if ranges == 0 || bytes > ballast {
		r.T.Errorf("%d bytes were read lazily, in %d ranges:\n%s", bytes, ranges, r.Reg.Dump())
	}
}
