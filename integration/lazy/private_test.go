package lazy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// alice may pull the private repositories.
var alice = &cri.AuthConfig{Username: "alice", Password: "secret"}

// newPrivateRig returns a rig whose registry requires credentials for everything but the sandbox image.
func newPrivateRig(t *testing.T) *lazyRig {
	t.Helper()
	r := newRig(t, node.Options{DiscardUnpackedLayers: true})
	r.Reg.SetAuth(&registry.Auth{
		Bearer: true, Public: []string{"pause"},
		Users: map[string]registry.User{alice.Username: {Password: alice.Password, Repositories: []string{"private/*"}}},
	})
	return r
}

// addNodeCredential writes alice's credential to the configuration file that the snapshotter reads.
func (r *lazyRig) addNodeCredential() {
	r.T.Helper()
	b, err := json.Marshal(map[string]any{"auths": map[string]any{
		r.Reg.Host(): map[string]string{"username": alice.Username, "password": alice.Password},
	}})
	if err == nil {
		err = os.WriteFile(filepath.Join(r.sn.Dir(), "config.json"), b, 0o600)
	}
	if err != nil {
		r.T.Fatal(err)
	}
}

// runPrivate runs a pod with a pull secret.
func (r *lazyRig) runPrivate(handler, ref, line string) *node.KubeletResult {
	r.T.Helper()
	res, err := r.RunAsKubelet(r.Ctx, node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: ref, Always: true, Auth: alice})
	if err != nil {
		r.T.Fatalf("running a pod of handler %s: %v", handler, err)
	}
	if res.Line != line {
		r.T.Errorf("a pod of handler %s printed %q, want %q", handler, res.Line, line)
	}
	return res
}

// wantRefused fails the test unless a pull without a credential is denied, although the image is on the node.
func (r *lazyRig) wantRefused(ref string) {
	r.T.Helper()
	for _, handler := range []string{eagerHandler, lazyHandler} {
		if _, err := r.Pull(r.Ctx, ref, handler); err == nil || !strings.Contains(err.Error(), "PullAccessDenied") {
			r.T.Errorf("pull for handler %s without a credential: got %v, want PullAccessDenied", handler, err)
		}
	}
}

// wantReadAs fails the test if another user has read the layers.
func (r *lazyRig) wantReadAs(layers []v1.Hash, user string) {
	r.T.Helper()
	for _, q := range r.layerRequests(layers) {
		if q.Status < 300 && q.User != user {
			r.T.Errorf("request not as user %s: %s", user, q)
		}
	}
}

// TestPrivate runs pods of a private image on both snapshotters, in both orders, and again after containerd and the
// snapshotter were killed. The snapshotter has a credential of the node, which does not authorize pulls without one.
func TestPrivate(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{eagerHandler, lazyHandler}, {lazyHandler, eagerHandler}} {
		t.Run(fmt.Sprintf("%s-first", order[0]), func(t *testing.T) {
			t.Parallel()
			r := newPrivateRig(t)
			r.addNodeCredential()
			opts := options("v1")
			ref, layers := r.push("private/app:v1", opts), r.layers(opts)
			for i, handler := range order {
				r.gc()
				r.Reg.Reset()
				r.runPrivate(handler, ref, opts.Line(0))
				r.wantReadAs(layers, alice.Username)
				if handler == lazyHandler {
					r.wantLazy(layers)
					if i == 0 {
						r.wantBlobs("after the lazy pod", layers, false)
					}
				}
			}
			r.wantRefused(ref)
			if err := r.RemovePods(r.Ctx); err != nil {
				t.Fatal(err)
			}
			if err := r.Kill9(); err != nil {
				t.Fatal(err)
			}
			if err := r.sn.Kill9(); err != nil {
				t.Fatal(err)
			}
			r.startSnapshotter()
			if err := r.Restart(r.Ctx, nil); err != nil {
				t.Fatal(err)
			}
			r.Reg.Reset()
			for _, handler := range order {
				r.runPrivate(handler, ref, opts.Line(0))
			}
			r.wantNoWholeLayer(layers)
			r.wantRefused(ref)
			r.check()
		})
	}
}

// TestPullSecretReachesSnapshotter pulls through the snapshotter's CRI proxy, as a kubelet does whose image service is
// the proxy. The snapshotter finds the credential of a layer by its reference, which is that of the pull.
func TestPullSecretReachesSnapshotter(t *testing.T) {
	t.Parallel()
	r := newPrivateRig(t)
	conn, err := grpc.NewClient("unix://"+r.sn.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	images := cri.NewImageServiceClient(conn)
	pull := func(ref, handler string, auth *cri.AuthConfig) error {
		_, err := images.PullImage(r.Ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref, RuntimeHandler: handler}, Auth: auth})
		return err
	}
	opts := options("v1")
	tag, layers := r.push("private/app:v1", opts), r.layers(opts)
	for _, handler := range []string{eagerHandler, lazyHandler} {
		r.gc()
		r.Reg.Reset()
		if err := pull(tag, handler, alice); err != nil {
			t.Fatal(err)
		}
		r.run(handler, tag, opts.Line(0))
		r.wantReadAs(layers, alice.Username)
	}
	r.wantLazy(layers)
	if err := pull(tag, lazyHandler, nil); err == nil || !strings.Contains(err.Error(), "PullAccessDenied") {
		t.Errorf("pull without a credential: got %v, want PullAccessDenied", err)
	}
}

// TestSnapshotterWithoutCredential pulls a private image for a snapshotter that has no credential. imagepin downloads
// the layers with the credential of the pull, and the pod runs.
func TestSnapshotterWithoutCredential(t *testing.T) {
	t.Parallel()
	r := newPrivateRig(t)
	opts := options("v1")
	ref, layers := r.push("private/app:v1", opts), r.layers(opts)
	r.runPrivate(lazyHandler, ref, opts.Line(0))
	whole := map[string]bool{}
	for _, q := range r.layerRequests(layers) {
		if q.Method == "GET" && q.Range == "" && q.Status == 200 && q.User == alice.Username {
			whole[q.Reference] = true
		}
	}
	if len(whole) != len(layers) {
		t.Errorf("got %d downloaded layers, want %d:\n%s", len(whole), len(layers), r.Reg.Dump())
	}
	r.wantRefused(ref)
	// The default handler uses these layers after its credential is verified.
	r.runPrivate(eagerHandler, ref, opts.Line(0))
}
