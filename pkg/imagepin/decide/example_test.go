package decide_test

import (
	"context"
	"fmt"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// The first pod of a revision pins its tag. Later pods of the revision run the same digest, even if the tag moves.
func ExampleDecider_Decide() {
	rules, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Workload}, nil, []string{"pod-template-hash"})
	if err != nil {
		fmt.Println(err)
		return
	}
	registry := &oneTag{root: build("first build")}
	decider := decide.New(decide.Config{
		Policy: func() *policy.Policy { return rules }, Pins: pins{}, Images: noImages{}, Proofs: noProofs{},
		Registry: registry, Retained: noneRetained{},
	})
	ref, err := imagepin.ParseReference("registry.example/shop/cart:v7")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	start := func(name, revision string) {
		pod := policy.Pod{Namespace: "shop", Labels: map[string]string{"pod-template-hash": revision}}
		v, err := decider.Decide(ctx, decide.Request{Ref: ref, Policy: decider.PolicyFor(ctx, ref, pod)})
		if err == nil {
			// After the image verifiers have allowed the image and the manifest has been read.
			v, err = decider.PinFirstUse(ctx, v)
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s runs the %s, pinned in scope %s\n", name, v.Root.Annotations["build"], v.Pin.Scope)
	}

	start("pod 1", "5f4d")
	registry.root = build("second build")
	start("pod 2", "5f4d")
	start("pod 3 of the next revision", "77c9")
	// Output:
	// pod 1 runs the first build, pinned in scope workload/shop/pod-template-hash=5f4d
	// pod 2 runs the first build, pinned in scope workload/shop/pod-template-hash=5f4d
	// pod 3 of the next revision runs the second build, pinned in scope workload/shop/pod-template-hash=77c9
}

func build(name string) ocispec.Descriptor {
	return ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString(name), Size: 607, Annotations: map[string]string{"build": name},
	}
}

// oneTag is a registry in which all tags resolve to one image.
type oneTag struct{ root ocispec.Descriptor }

func (r *oneTag) Resolve(context.Context, reference.Named, resolve.Credential) (resolve.Resolved, error) {
	return resolve.Resolved{Root: r.root, Host: "registry.example"}, nil
}

func (r *oneTag) Authorize(context.Context, reference.Canonical, resolve.Credential) (resolve.Resolved, error) {
	return resolve.Resolved{Root: r.root, Host: "registry.example"}, nil
}

// pins are pins in memory. [pin.Store] keeps them in containerd.
type pins map[pin.ID]pin.Pin

func (p pins) Get(id pin.ID) (pin.Pin, bool) {
	held, ok := p[id]
	return held, ok
}

func (p pins) MakeForNamespace(_ context.Context, _ string, id pin.ID, root ocispec.Descriptor, by pin.By, retain bool) (pin.Pin, error) {
	if _, ok := p[id]; !ok {
		p[id] = pin.Pin{ID: id, Root: root, By: by, Retain: retain}
	}
	return p[id], nil
}

func (p pins) Move(_ context.Context, id pin.ID, root ocispec.Descriptor, by pin.By, retain bool) (pin.Pin, error) {
	p[id] = pin.Pin{ID: id, Root: root, By: by, Retain: retain}
	return p[id], nil
}

func (p pins) MoveUnchanged(ctx context.Context, read pin.Pin, root ocispec.Descriptor, by pin.By, retain bool) (pin.Pin, error) {
	return p.Move(ctx, read.ID, root, by, retain)
}

func (p pins) Refresh(ctx context.Context, read pin.Pin, root ocispec.Descriptor, _ bool) (pin.Pin, error) {
	return p.Move(ctx, read.ID, root, pin.ByRefresh, read.Retain)
}

func (p pins) Follow(ctx context.Context, id pin.ID, root ocispec.Descriptor, retain bool, _ string) (pin.Followed, error) {
	held, err := p.Move(ctx, id, root, pin.ByCluster, retain)
	return pin.Followed{Pin: held}, err
}

func (p pins) Unfollow(_ context.Context, read pin.Pin) (bool, error) {
	delete(p, read.ID)
	return true, nil
}

func (p pins) MakeProvisional(ctx context.Context, id pin.ID, root ocispec.Descriptor, retain bool, _ pin.Claimant) (pin.Pin, error) {
	return p.MakeForNamespace(ctx, "", id, root, pin.ByUse, retain)
}

func (p pins) List() (all []pin.Pin) {
	for _, held := range p {
		all = append(all, held)
	}
	return all
}

func (p pins) Scopes(ref string) (all []pin.Pin) {
	for id, held := range p {
		if id.Ref == ref {
			all = append(all, held)
		}
	}
	return all
}

func (pins) OfLock(string) (pin.Pin, bool)                            { return pin.Pin{}, false }
func (pins) CheckReadable(pin.ID) error                               { return nil }
func (pins) Touch(context.Context, pin.ID) error                      { return nil }
func (pins) RecordDrift(context.Context, pin.ID, digest.Digest) error { return nil }
func (pins) EvictRetaining(context.Context, func(string) bool, func([]digest.Digest) bool) (bool, error) {
	return false, nil
}

func (pins) Prove(context.Context, reference.Named, digest.Digest, ...imagepin.Proof) error {
	return nil
}

// noImages is a node without images.
type noImages struct{}

func (noImages) ByRef(string) []imagepin.Entry             { return nil }
func (noImages) ByRoot(digest.Digest) []imagepin.Entry     { return nil }
func (noImages) ByManifest(digest.Digest) []imagepin.Entry { return nil }

// noProofs has no proofs.
type noProofs struct{}

func (noProofs) Of(reference.Named, resolve.Credential, digest.Digest) string { return "" }
func (noProofs) Accepted(reference.Named, resolve.Credential, digest.Digest) (string, bool) {
	return "", false
}

// noneRetained retains no content.
type noneRetained struct{}

func (noneRetained) HoldsRoot(digest.Digest) bool { return false }

func (noneRetained) OverShare(string, int64) func(string) bool { return nil }

func (noneRetained) Reserve(string, func() int64, func(digest.Digest) bool, ...imagepin.Entry) (func(), error) {
	return func() {}, nil
}
