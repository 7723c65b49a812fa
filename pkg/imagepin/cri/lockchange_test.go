package cri

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// lockOf is a lock that names one digest.
type lockOf struct{ names, id digest.Digest }

func (l *lockOf) Copies(reference.Named, digest.Digest) []reference.Named { return nil }

func (l *lockOf) Names(_ reference.Named, d digest.Digest) bool { return d == l.names }
func (l *lockOf) Digest() digest.Digest                         { return l.id }

// TestLockChangesDuringCreateContainer applies another lock between the check of a container's image and its use. The image is
// checked again, and refused if the new lock does not name it.
func TestLockChangesDuringCreateContainer(t *testing.T) {
	p := newPinnedNode(t, policy.Off)
	v1 := versionOf("one", "0")
	p.put(v1, "", v1.byDigest)
	strict, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Off, Locked: policy.LockedStrict}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := &lockOf{names: v1.root.Digest, id: "sha256:first"}
	p.base.Decider = decide.New(decide.Config{Policy: ctdtest.Always(strict), Pins: p.pins, Images: p.Store.(*store.Store), Lock: now})
	c, target := &containers{p.base}, p.Runtimes().Default().Target
	specs := []*runtime.ImageSpec{{Image: v1.byDigest}}
	images, err := c.resolveImages(p.ctx(), specs, policy.Pod{}, target)
	if err != nil {
		t.Fatal(err)
	}
	if current, err := p.base.Decider.Confirm(p.ctx(), usedOf(images)...); err != nil || !current {
		t.Fatalf("with the same lock: %t, %v", current, err)
	}
	*now = lockOf{names: "sha256:other", id: "sha256:second"}
	if current, err := p.base.Decider.Confirm(p.ctx(), usedOf(images)...); err != nil || current {
		t.Errorf("with another lock: %t, %v, want another attempt", current, err)
	}
	if _, err := c.resolveImages(p.ctx(), specs, policy.Pod{}, target); !errdefs.IsPermissionDenied(err) {
		t.Errorf("the other attempt: %v, want NotInLock", err)
	}
}

// TestLockDecidesImageOfCopy creates a container with the image ID of before a lock moved the tag. Only a copy in another repository
// still has that image. The container runs the image of the lock.
func TestLockDecidesImageOfCopy(t *testing.T) {
	p := newPinnedNode(t, policy.Off)
	before, after := versionOf("before", "0"), versionOf("after", "0")
	p.put(after, "", after.byDigest, pinnedTag)
	before.byDigest = "registry.example/copies/app@" + before.root.Digest.String()
	p.put(before, "", before.byDigest)
	specs := []*runtime.ImageSpec{{Image: before.id.String(), UserSpecifiedImage: pinnedTag}}
	c, target := &containers{p.base}, p.Runtimes().Default().Target
	want := func(what string, v version) {
		t.Helper()
		images, err := c.resolveImages(p.ctx(), specs, policy.Pod{}, target)
		if err != nil {
			t.Fatal(err)
		}
		if got := images[0].Root.Digest; got != v.root.Digest {
			t.Errorf("%s: got %s, want %s", what, got, v.root.Digest)
		}
	}
	want("without a lock", before)
	id := pin.ID{Scope: policy.LockScope, Ref: pinnedTag}
	p.pins.SetLock([]pin.Pin{{ID: id, Root: after.root, By: pin.ByLock, Retain: true}}, nil)
	want("with a lock", after)
}
