package pull

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// unobserved ignores pulls.
type unobserved struct{}

func (unobserved) Pulled(Outcome) {}
func (unobserved) FallbackUsed()  {}
func (unobserved) RepairFailed()  {}

// pinningNode is a node without images that pins every tag, and cannot unpack a layer.
type pinningNode struct {
	*Puller
	ctx      context.Context
	runtimes *runtimeplatform.Set
	// made are the pins that were made, also if they are gone.
	made []pin.ID
}

func newPinningNode(t *testing.T, consistency policy.Consistency, verifier imageverifier.ImageVerifier) *pinningNode {
	t.Helper()
	n := ctdtest.New(t, "first")
	p := &pinningNode{ctx: n.Context(t), runtimes: runtimes(t, "linux/arm64")}
	rules, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: consistency}, nil, []string{"pod-template-hash"})
	noError(t, err)
	prover, err := resolve.NewProver(make([]byte, 32))
	noError(t, err)
	pins := pin.New(pin.Config{
		Images: n.Images, Namespaces: ctdtest.Namespaces{DB: n.DB},
		Notify: func(_ context.Context, e pin.Event, made pin.Pin, _ digest.Digest) {
			if e == pin.Made {
				p.made = append(p.made, made.ID)
			}
		},
	})
	noError(t, pins.Load(p.ctx))
	s := store.New(store.Config{
		Records: ctdtest.Records{Store: n.Images}, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter,
		Runtimes: ctdtest.Always(p.runtimes),
	})
	resolver := resolve.New(resolve.Config{Prover: prover, Timeout: time.Minute})
	proofs := decide.NodeProofs{Prover: resolver, Stores: []decide.ProofStore{s, pins}}
	decider := decide.New(decide.Config{Policy: ctdtest.Always(rules), Pins: pins, Images: s, Proofs: proofs, Registry: resolver})
	locks := &Locks{}
	unpackers := []unpack.Platform{{
		Platform: platforms.All, SnapshotterKey: "first", Snapshotter: n.Snapshotter("first"), Applier: noApplier{},
	}}
	maker := New(Config{
		Content: n.Content, Leases: n.Leases, Images: s, Pins: decider, Proofs: proofs, Sessions: resolver, Garbage: &fakeGarbage{},
		Locks: locks, Runtimes: ctdtest.Always(p.runtimes), Settings: ctdtest.Always(&Settings{
			Verifiers: map[string]imageverifier.ImageVerifier{"verifier": verifier}, UnpackPlatforms: unpackers,
			Transfer: NewTransfer(n.Content, n.Leases, unpackers, Limits{Unpacks: 1}, locks),
		}),
	})
	p.Puller = NewPuller(decider, maker, unobserved{}, prover.Identity)
	return p
}

// TestPinOfFailedPull pulls a tag for the first time, and the pull fails. If it fails before the manifest for the target
// is read, it makes no pin, at no time. After that, it makes the pin before it fetches layers.
func TestPinOfFailedPull(t *testing.T) {
	blobs := ctdtest.Blobs{}
	amd64 := blobs.Image("linux/amd64", "app", nil)
	index := blobs.Index(amd64.Manifest)
	for name, test := range map[string]struct {
		handler string
		missing digest.Digest // in the registry
		refuse  bool
		reason  imagepin.Reason
		pins    bool
	}{
		"no manifest for the platform":    {handler: "linux-arm64", reason: imagepin.NoMatchingPlatform},
		"index is not in the registry":    {missing: index.Digest, reason: imagepin.CannotPullImage},
		"manifest is not in the registry": {missing: amd64.Manifest.Digest, reason: imagepin.CannotPullImage},
		"a verifier refuses":              {refuse: true, reason: imagepin.ImageVerificationFailed},
		"layer is not in the registry":    {missing: amd64.Layer.Digest, reason: imagepin.CannotPullImage, pins: true},
	} {
		for consistency, scope := range map[policy.Consistency]policy.Scope{
			policy.Node: policy.NodeScope, policy.Workload: policy.WorkloadScope("shop", "pod-template-hash", "r1"),
		} {
			t.Run(fmt.Sprintf("%s, %s", name, consistency), func(t *testing.T) {
				served := blobs.With(nil)
				delete(served, test.missing)
				registry := httptest.NewServer(ctdtest.Registry{Blobs: served, Root: index})
				defer registry.Close()
				p := newPinningNode(t, consistency, verifierFunc(func(string, ocispec.Descriptor) (*imageverifier.Judgement, error) {
					return &imageverifier.Judgement{OK: !test.refuse}, nil
				}))
				rt, err := p.runtimes.Lookup(test.handler)
				noError(t, err)
				ref := strings.TrimPrefix(registry.URL, "http://") + "/team/app:v1"
				_, err = p.Pull(p.ctx, Request{
					Ref: ref, Runtime: rt, Pod: policy.Pod{Namespace: "shop", Labels: map[string]string{"pod-template-hash": "r1"}},
				})
				var failed *imagepin.Error
				if !errors.As(err, &failed) || failed.Reason != test.reason {
					t.Errorf("got %v, want reason %s", err, test.reason)
				}
				var want []pin.ID
				if test.pins {
					want = []pin.ID{{Scope: scope, Ref: ref}}
				}
				if !slices.Equal(p.made, want) {
					t.Errorf("made pins %v, want %v", p.made, want)
				}
			})
		}
	}
}
