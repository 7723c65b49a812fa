package pull

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// lockedNode is a node with the content of an image, and a registry that has nothing.
type lockedNode struct {
	*makerNode
	*Puller
	img ctdtest.Image

	mu       sync.Mutex
	sessions int
	requests int
	verified []string
	refuse   bool
}

// Session implements Sessions.
func (n *lockedNode) Session(ref reference.Named, c resolve.Credential) *resolve.Session {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sessions++
	return resolve.New(resolve.Config{}).Session(ref, c)
}

// VerifyImage implements imageverifier.ImageVerifier.
func (n *lockedNode) VerifyImage(_ context.Context, name string, _ ocispec.Descriptor) (*imageverifier.Judgement, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, tag, _ := strings.Cut(name, "app:")
	n.verified = append(n.verified, tag)
	return &imageverifier.Judgement{OK: !n.refuse}, nil
}

func newLockedNode(t *testing.T) (_ *lockedNode, ref func(tag string) reference.Named) {
	t.Helper()
	n := &lockedNode{makerNode: newMakerNode(t, pinned{}, 0)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.requests++
		w.Header().Set("Content-Type", n.img.Manifest.MediaType)
		w.Header().Set("Docker-Content-Digest", n.img.Manifest.Digest.String())
		if r.Method != http.MethodHead {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", strconv.FormatInt(n.img.Manifest.Size, 10))
	}))
	t.Cleanup(server.Close)
	blobs := ctdtest.Blobs{}
	n.img = blobs.Image("linux/amd64", "app", nil)
	ctx, done := n.Lease(t)
	t.Cleanup(done)
	n.Write(ctx, t, blobs)
	n.Unpack(ctx, t, n.img, "native")

	rulebook, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Off}, nil, nil)
	noError(t, err)
	c := n.makerNode.maker.config
	settings := *c.Settings()
	settings.Verifiers = map[string]imageverifier.ImageVerifier{"counting": n}
	c.Sessions, c.Settings = n, ctdtest.Always(&settings)
	prover, err := resolve.NewProver(make([]byte, 32))
	noError(t, err)
	decider := decide.New(decide.Config{
		Policy: ctdtest.Always(rulebook), Pins: pin.New(pin.Config{}), Images: n.store, Retained: n.retainer, Proofs: anyCredential{},
		Registry: resolve.New(resolve.Config{Prover: prover, Timeout: time.Minute}),
	})
	c.Pins = decider
	n.Puller = NewPuller(decider, New(c), unobserved{}, func(resolve.Credential) string { return "" })
	return n, func(tag string) reference.Named {
		t.Helper()
		ref, err := imagepin.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/app" + tag)
		noError(t, err)
		return ref
	}
}

// make makes the image of a lock.
func (n *lockedNode) make(t *testing.T, l Locked) (Pulled, error) {
	t.Helper()
	l.Runtime = n.Puller.maker.config.Runtimes().Default()
	return n.MakeLocked(n.Context(t), l)
}

// TestLockedOnNode checks that no registry is asked for content that is on the node: not if it is there, and not if it is gone. The
// image is imported only if the content came from a bundle, and stays pulled if a registry has returned its digest.
func TestLockedOnNode(t *testing.T) {
	n, ref := newLockedNode(t)
	byDigest := ref("@" + n.img.Manifest.Digest.String())
	for _, c := range []struct {
		Locked
		want imagepin.Source
	}{
		{Locked{Ref: byDigest, From: FromBundle}, imagepin.SourceImported},
		{Locked{Ref: ref(":1"), From: FromBundle}, imagepin.SourceImported},
		{Locked{Ref: ref("/copy:1"), From: FromNode}, imagepin.SourcePull},
		{Locked{Ref: ref("/copy:2"), From: FromBundle}, imagepin.SourcePull},
	} {
		c.Root = n.img.Manifest
		made, err := n.make(t, c.Locked)
		noError(t, err)
		if made.Ref != c.Ref.String() || made.ImageID != n.img.Config.Digest || made.Source != c.want {
			t.Errorf("%s: made %+v", c.Ref, made.Entry)
		}
	}
	lost, err := n.make(t, Locked{Ref: ref("@" + ctdtest.Blobs{}.Add("", []byte("x")).Digest.String()), From: FromNode, Root: ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageManifest, Digest: ctdtest.Blobs{}.Add("", []byte("x")).Digest, Size: 1,
	}})
	if !errdefs.IsNotFound(err) {
		t.Errorf("without its content: %+v, %v", lost, err)
	}
	if n.sessions != 0 || n.requests != 0 {
		t.Errorf("%d sessions, %d requests", n.sessions, n.requests)
	}
	if len(n.verified) != 0 { // the caller has
		t.Errorf("verified %q", n.verified)
	}
}

// TestLockedVerifyAs checks that the verifiers are called for each reference of an image after it is resolved and before
// anything is fetched, and that the apply ends if one refuses.
func TestLockedVerifyAs(t *testing.T) {
	n, ref := newLockedNode(t)
	l := Locked{Ref: ref("@" + n.img.Manifest.Digest.String()), VerifyAs: []reference.Named{ref(":1"), ref(":2")}}
	n.refuse = true
	_, err := n.make(t, l)
	if !errdefs.IsPermissionDenied(err) || n.sessions != 0 || n.requests != 1 || !slices.Equal(n.verified, []string{"1"}) {
		t.Errorf("refused: %v after %d requests, %d sessions, verified %q", err, n.requests, n.sessions, n.verified)
	}
	if _, ok := n.store.Get(imagepin.Key{Ref: l.Ref.String(), Target: n.Puller.maker.config.Runtimes().Default().Target}); ok {
		t.Error("a refused image is recorded")
	}
	n.refuse, n.verified = false, nil
	_, err = n.make(t, l)
	noError(t, err)
	if !slices.Equal(n.verified, []string{"1", "2"}) {
		t.Errorf("verified %q", n.verified)
	}
}
