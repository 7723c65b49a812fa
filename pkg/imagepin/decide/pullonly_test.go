package decide

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

var alice = resolve.Credential{Username: "alice", Password: "secret"}

// addOpenMirror puts a mirror before the registry that has the capability pull only, and accepts every credential.
func (e *env) addOpenMirror(t *testing.T) *fakeRegistry {
	t.Helper()
	return e.addMirror(t, `"pull"`)
}

// addMirror puts a mirror with capabilities before the registry.
func (e *env) addMirror(t *testing.T, capabilities string) *fakeRegistry {
	t.Helper()
	mirror := newFakeRegistry(t)
	root := t.TempDir()
	dir := filepath.Join(root, reference.Domain(e.ref))
	noError(t, os.Mkdir(dir, 0o755))
	hosts := fmt.Sprintf("server = %q\n[host.%q]\n  capabilities = [%s]\n", e.registry.URL, mirror.URL, capabilities)
	noError(t, os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(hosts), 0o600))
	prover, err := resolve.NewProver(make([]byte, 32))
	noError(t, err)
	e.resolver = resolve.New(resolve.Config{
		Timeout: time.Minute, Prover: prover, Registry: resolve.RegistryConfig{ConfigPath: []string{root}},
	})
	e.Decider.registry = e.resolver
	e.Decider.proofs = NodeProofs{Prover: e.resolver, Stores: []ProofStore{e.images, e.pins}}
	return mirror
}

// TestClusterPinNeedsProof pulls the tag of a private image that has an ImagePin. An open mirror with the capability pull
// only has the image. Only the registry decides whether a pod may have it.
func TestClusterPinNeedsProof(t *testing.T) {
	for name, test := range map[string]struct {
		image    bool                // it is on the node
		by       *resolve.Credential // that the registry has accepted for it before
		status   int32               // of the registry's answers
		want     string              // the version that the pod runs, or "" if the registry denies access
		requests int64               // to the registry
	}{
		"absent, accepted":              {want: "old", requests: 1},
		"absent, denied":                {status: http.StatusUnauthorized, requests: 1},
		"on the node, accepted":         {image: true, by: &alice, want: "old", requests: 1},
		"on the node, denied":           {image: true, by: &alice, status: http.StatusUnauthorized, requests: 1},
		"on the node, accepted earlier": {image: true, by: &resolve.Credential{}, status: http.StatusUnauthorized, want: "old"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newMember(t, newFakeCluster(), false)
			mirror := e.addOpenMirror(t)
			e.member.pins["uid-1 "+e.ref.String()] = roots["old"].Digest
			e.registry.status.Store(test.status)
			q, err := e.Ask(e.ctx, Call{Ref: e.ref, Pod: webPod("web-1-a")})
			noError(t, err)
			if test.image { // a pull of another pod has made it ready meanwhile
				e.put(t, "old", ownTarget, imagepin.SourcePull, test.by, 1)
			}
			v, err := e.Decide(e.ctx, q)
			wantEqual(t, "requests to the registry", e.registry.requests.Load(), test.requests)
			wantEqual(t, "requests to the mirror", mirror.requests.Load(), 0)
			if test.want == "" {
				wantError(t, err, imagepin.PullAccessDenied, errdefs.ErrUnauthenticated)
				return
			}
			noError(t, err)
			wantEqual(t, "digest", version(v.Root.Digest), test.want)
			wantEqual(t, "a proof", v.Proof != "", test.requests > 0)
			wantEqual(t, "first use", v.FirstUse != nil, true)
		})
	}
}

// TestClusterLostNeedsProof claims a digest that the registry has accepted for a pod, while another node claims another
// one, which the registry denies. An open mirror with the capability pull only has that as well.
func TestClusterLostNeedsProof(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	mirror := e.addOpenMirror(t)
	c.beside = func() {
		c.pins["uid-1 "+e.ref.String()] = roots["new"].Digest
		e.put(t, "new", ownTarget, imagepin.SourcePull, &alice, 1)
		e.registry.status.Store(http.StatusForbidden)
	}
	_, err := e.pull(t, webPod("web-1-a"))
	wantError(t, err, imagepin.PullAccessDenied, errdefs.ErrPermissionDenied)
	wantEqual(t, "requests to the mirror", mirror.requests.Load(), 0)
	wantEqual(t, "pins", len(e.pins.List()), 0)
}

// TestClusterPinOfContainerNeedsProof creates a container without a pull, for which only the node's credentials are
// available.
func TestClusterPinOfContainerNeedsProof(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	mirror := e.addOpenMirror(t)
	c.pins["uid-1 "+e.ref.String()] = roots["old"].Digest
	e.registry.status.Store(http.StatusUnauthorized)
	_, err := e.described(e.ctx, e.ref, webPod("web-1-a"))
	wantError(t, err, imagepin.PullAccessDenied, errdefs.ErrUnauthenticated)
	wantEqual(t, "requests to the mirror", mirror.requests.Load(), 0)
}
