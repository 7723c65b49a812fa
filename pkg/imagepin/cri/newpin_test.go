package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// verifyingPuller has an image verifier and no registry.
type verifyingPuller struct {
	Puller
	verify func() error // nil accepts every image
	asked  []string
	runs   int // calls of VerifyRun
	needs  []pull.Need
	making func(pull.Need) // runs while an image is made ready; may be nil
}

func (p *verifyingPuller) Verify(_ context.Context, ref reference.Named, root ocispec.Descriptor) error {
	p.asked = append(p.asked, fmt.Sprint(ref, " ", root.Digest))
	if p.verify == nil {
		return nil
	}
	return p.verify()
}

func (p *verifyingPuller) VerifyRun(ctx context.Context, ref reference.Named, root ocispec.Descriptor) error {
	p.runs++
	return p.Verify(ctx, ref, root)
}

func (p *verifyingPuller) MakeReady(_ context.Context, n pull.Need) (imagepin.Entry, error) {
	p.needs = append(p.needs, n)
	if p.making != nil {
		p.making(n)
	}
	return imagepin.Entry{}, errdefs.ErrUnavailable
}

// refuse is a verifier that accepts no image.
func refuse() error {
	return &imagepin.Error{Reason: imagepin.ImageVerificationFailed, Class: errdefs.ErrPermissionDenied, Message: "nobody signed it"}
}

// verifyingNode is a node with an adopted image, with image verifiers, and with pins.
type verifyingNode struct {
	*adoptedNode
	puller *verifyingPuller
	pins   *pin.Store
	log    bytes.Buffer
}

func newVerifyingNode(t *testing.T, consistency policy.Consistency) *verifyingNode {
	t.Helper()
	v := &verifyingNode{adoptedNode: newAdoptedNode(t), puller: &verifyingPuller{}}
	v.pins = pin.New(pin.Config{Images: v.Images, Namespaces: ctdtest.Namespaces{DB: v.DB}})
	noError(t, v.pins.Load(t.Context()))
	v.base.Puller, v.base.Pins = v.puller, v.pins
	v.setRule(t, policy.Rule{Consistency: consistency})
	return v
}

// setRule replaces the rules of the node by one.
func (v *verifyingNode) setRule(t *testing.T, r policy.Rule) {
	t.Helper()
	r.Behavior = policy.Default
	rules, err := policy.New(r, nil, []string{"pod-template-hash"})
	noError(t, err)
	v.base.Decider = decide.New(decide.Config{Policy: ctdtest.Always(rules), Pins: v.pins, Images: v.base.Store.(*store.Store)})
}

// create creates a container as kubelet does: by the image ID, without a pull.
func (v *verifyingNode) create(t *testing.T) error {
	t.Helper()
	_, err := v.containers.createContainer(withLog(t.Context(), &v.log), &runtime.CreateContainerRequest{
		PodSandboxId: adoptedSandbox,
		Config: &runtime.ContainerConfig{
			Image: &runtime.ImageSpec{Image: v.img.Config.Digest.String(), UserSpecifiedImage: adoptedTag},
		},
	}, func(context.Context, *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error) {
		return &runtime.CreateContainerResponse{ContainerId: "container"}, nil
	})
	return err
}

func (v *verifyingNode) root() digest.Digest { return v.base.Store.ByRef(adoptedTag)[0].Root.Digest }

func (v *verifyingNode) movePin(t *testing.T, to digest.Digest) {
	t.Helper()
	root := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: to, Size: 1}
	_, err := v.pins.Move(t.Context(), pin.ID{Scope: policy.NodeScope, Ref: adoptedTag}, root, pin.ByOperator, false)
	noError(t, err)
}

// wantPin fails the test unless the tag is pinned to a digest, or not pinned if want is "".
func (v *verifyingNode) wantPin(t *testing.T, want digest.Digest) {
	t.Helper()
	held, _ := v.pins.Get(pin.ID{Scope: policy.NodeScope, Ref: adoptedTag})
	if held.Root.Digest != want {
		t.Errorf("pinned to %q, want %q", held.Root.Digest, want)
	}
}

// wantAsked fails the test unless the verifiers were called a number of times, with the tag and the digest of the image.
func (v *verifyingNode) wantAsked(t *testing.T, times int) {
	t.Helper()
	if len(v.puller.asked) != times {
		t.Errorf("called the verifiers with %q, want %d calls", v.puller.asked, times)
	}
	for _, asked := range v.puller.asked {
		if want := fmt.Sprint(adoptedTag, " ", v.root()); asked != want {
			t.Errorf("called the verifiers with %q, want %q", asked, want)
		}
	}
}

// TestRefusedImageIsNotPinned creates containers from an imported image that nobody has signed. They run, as with stock
// containerd, but make no pin: with it, no later pull in its scope could run the image of the tag. The log says why.
func TestRefusedImageIsNotPinned(t *testing.T) {
	v := newVerifyingNode(t, policy.Node)
	v.puller.verify = refuse
	for range 2 {
		noError(t, v.create(t))
	}
	v.wantPin(t, "")
	v.wantAsked(t, 2)
	for _, want := range []string{"level=warning", "ref=" + `"` + adoptedTag, v.root().String(), "scope=node", "nobody signed it"} {
		if strings.Count(v.log.String(), want) < 2 {
			t.Errorf("the log does not have %q for each container:\n%s", want, v.log.String())
		}
	}

	v.puller.verify = nil // somebody signs it
	noError(t, v.create(t))
	v.wantPin(t, v.root())
	v.wantAsked(t, 3)
	v.puller.verify = refuse
	noError(t, v.create(t)) // the pin exists
	v.wantAsked(t, 3)
}

// TestVerifiersDecideNewPinsOnly does not call verifiers for a container that makes no pin.
func TestVerifiersDecideNewPinsOnly(t *testing.T) {
	for name, test := range map[string]struct {
		consistency policy.Consistency
		pinned      bool
	}{
		"no policy": {policy.Off, false}, "a pod without a workload": {policy.Workload, false},
		"pinned": {policy.Node, true}, "pinned by an operator": {policy.Off, true},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVerifyingNode(t, test.consistency)
			v.puller.verify = refuse
			want := digest.Digest("")
			if test.pinned {
				want = v.root()
				v.movePin(t, want)
			}
			noError(t, v.create(t))
			v.wantPin(t, want)
			v.wantAsked(t, 0)
			if v.log.Len() > 0 {
				t.Errorf("the log is not empty:\n%s", v.log.String())
			}
		})
	}
}

// TestPinIsMadeWhileVerifying pins the tag to another digest while the verifiers check the image. No lock is held
// meanwhile. Whatever they say, the container uses the digest of the pin.
func TestPinIsMadeWhileVerifying(t *testing.T) {
	other := digest.FromString("another digest")
	for name, verdict := range map[string]func() error{"accepted": func() error { return nil }, "refused": refuse} {
		t.Run(name, func(t *testing.T) {
			v := newVerifyingNode(t, policy.Node)
			v.puller.verify = func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				unlock, err := v.base.Locks.ForRemoval(ctx, adoptedTag, byDigest(v.base.Store.ByRef(adoptedTag)[0]).String())
				if err != nil {
					t.Errorf("the image is locked while it is verified: %v", err)
					return err
				}
				unlock()
				v.movePin(t, other)
				return verdict()
			}
			if err := v.create(t); !errdefs.IsUnavailable(err) {
				t.Errorf("got %v, want the error of the pinned digest, which is not on the node", err)
			}
			v.wantAsked(t, 1)
			v.wantPin(t, other)
			if needs := v.puller.needs; len(needs) != 1 || needs[0].Root.Digest != other || needs[0].Pin == nil {
				t.Errorf("made %+v ready, want the pinned digest", needs)
			}
		})
	}
}

// TestImagesAreNotLockedWhileTheyAreMadeReady makes an image ready, which takes as long as its registry wants. Removals do
// not wait.
func TestImagesAreNotLockedWhileTheyAreMadeReady(t *testing.T) {
	v := newVerifyingNode(t, policy.Node)
	v.movePin(t, digest.FromString("another digest"))
	v.puller.making = func(n pull.Need) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		unlock, err := v.base.Locks.ForRemoval(ctx, adoptedTag, n.Ref.String())
		if err != nil {
			t.Errorf("the image is locked while it is made ready: %v", err)
			return
		}
		unlock()
	}
	if err := v.create(t); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v, want the error of the image", err)
	}
	if len(v.puller.needs) != 1 {
		t.Errorf("made %+v ready, want one image", v.puller.needs)
	}
}

// removingLocks runs remove before the first lock for use.
type removingLocks struct {
	Locks
	remove func()
}

func (l *removingLocks) ForUse(ctx context.Context, refs ...string) (func(), error) {
	if l.remove != nil {
		l.remove()
		l.remove = nil
	}
	return l.Locks.ForUse(ctx, refs...)
}

// TestImageIsRemovedBeforeItIsLocked removes an image after it was found ready and before it is locked. It is made ready
// again.
func TestImageIsRemovedBeforeItIsLocked(t *testing.T) {
	v := newVerifyingNode(t, policy.Off)
	key := v.base.Store.ByRef(adoptedTag)[0].Key
	v.base.Locks = &removingLocks{Locks: v.base.Locks, remove: func() {
		if _, err := v.base.Store.Remove(v.containers.namespaced(t.Context()), key); err != nil {
			t.Error(err)
		}
	}}
	if err := v.create(t); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v, want the error of the image", err)
	}
	if len(v.puller.needs) != 1 {
		t.Errorf("made %+v ready, want one image", v.puller.needs)
	}
}

// removingImages removes a pin while upstream is waited for.
type removingImages struct{ remove func() }

func (r removingImages) WaitVisible(context.Context, imagepin.Entry) error {
	r.remove()
	return nil
}

// TestPinIsRemovedDuringUse removes the pin of a container while its image is made ready. The container does not make it
// again without the verifiers.
func TestPinIsRemovedDuringUse(t *testing.T) {
	v := newVerifyingNode(t, policy.Node)
	v.puller.verify = refuse
	v.movePin(t, v.root())
	v.base.Images = removingImages{remove: func() {
		_, err := v.pins.Remove(t.Context(), pin.ID{Scope: policy.NodeScope, Ref: adoptedTag})
		if err != nil && !errdefs.IsNotFound(err) {
			t.Error(err)
		}
	}}
	noError(t, v.create(t))
	v.wantPin(t, "")
	v.wantAsked(t, 1)
}

// TestVerifiersWithoutVerdict fails a container if the verifiers cannot be called.
func TestVerifiersWithoutVerdict(t *testing.T) {
	v := newVerifyingNode(t, policy.Node)
	ended := errors.New("imagepin ends")
	v.puller.verify = func() error { return ended }
	if err := v.create(t); !errors.Is(err, ended) {
		t.Errorf("got %v, want %v", err, ended)
	}
	v.wantPin(t, "")
}

// TestRefusedImageDoesNotRun creates containers with a rule that verifies them: from an image that makes a pin, that has one,
// and that is not pinned. What is refused does not run, and makes no pin.
func TestRefusedImageDoesNotRun(t *testing.T) {
	for name, test := range map[string]struct {
		consistency policy.Consistency
		pinned      bool
	}{"not pinned": {policy.Off, false}, "a new pin": {policy.Node, false}, "pinned": {policy.Node, true}} {
		t.Run(name, func(t *testing.T) {
			v := newVerifyingNode(t, policy.Off)
			v.setRule(t, policy.Rule{Consistency: test.consistency, Verify: policy.VerifyRun})
			if test.pinned {
				v.movePin(t, v.root())
			}
			v.puller.verify = refuse
			var refused *imagepin.Error
			if err := v.create(t); !errors.As(err, &refused) || refused.Reason != imagepin.ImageVerificationFailed || !errdefs.IsPermissionDenied(err) {
				t.Errorf("got %v, want ImageVerificationFailed", err)
			}
			if !test.pinned {
				v.wantPin(t, "")
			}
			v.puller.verify = nil
			noError(t, v.create(t))
			if test.consistency == policy.Node {
				v.wantPin(t, v.root())
			}
			v.wantAsked(t, 2)
			if v.puller.runs != 2 {
				t.Errorf("got %d of these calls for a container, want 2", v.puller.runs)
			}
		})
	}
}

// TestPinMovesWhileAContainerIsVerified moves the pin while the verifiers are called: they are called for its digest, too.
func TestPinMovesWhileAContainerIsVerified(t *testing.T) {
	v := newVerifyingNode(t, policy.Node)
	v.setRule(t, policy.Rule{Consistency: policy.Node, Verify: policy.VerifyRun})
	other := digest.FromString("another digest")
	v.puller.verify = func() error {
		if len(v.puller.asked) > 1 {
			return refuse()
		}
		v.movePin(t, other)
		return nil
	}
	if err := v.create(t); !errdefs.IsPermissionDenied(err) {
		t.Errorf("got %v, want that the digest of the pin is refused", err)
	}
	want := []string{fmt.Sprint(adoptedTag, " ", v.root()), fmt.Sprint(adoptedTag, " ", other)}
	if !slices.Equal(v.puller.asked, want) {
		t.Errorf("called the verifiers with %q, want %q", v.puller.asked, want)
	}
}
