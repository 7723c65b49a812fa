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
		Policy: func() *policy.Policy { return rules }, Pins: pins{held: map[pin.ID]pin.Pin{}}, Images: noImages{}, Proofs: noProofs{}, Registry: registry,
	})
	ref, err := imagepin.ParseReference("registry.example/shop/cart:v7")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	start := func(name, revision string) {
		pod := policy.Pod{Namespace: "shop", Labels: map[string]string{"pod-template-hash": revision}}
		q, err := decider.Ask(ctx, decide.Call{Ref: ref, Pod: pod})
		if err != nil {
			fmt.Println(err)
			return
		}
		v, err := decider.Decide(ctx, q)
		if err != nil {
			fmt.Println(err)
			return
		}
		// After the image verifiers have allowed the image and the manifest has been read.
		v, release, err := decider.Claim(ctx, v, imagepin.Entry{}, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer release()
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
type oneTag struct {
	decide.Registry
	root ocispec.Descriptor
}

func (r *oneTag) Resolve(context.Context, reference.Named, resolve.Credential) (resolve.Resolved, error) {
	return resolve.Resolved{Root: r.root, Host: "registry.example"}, nil
}

// pins has pins in memory. [pin.Store] has them in containerd.
type pins struct {
	decide.Pins
	held map[pin.ID]pin.Pin
}

func (p pins) Get(id pin.ID) (pin.Pin, bool) {
	held, ok := p.held[id]
	return held, ok
}

func (p pins) MakeForNamespace(_ context.Context, _ string, id pin.ID, root ocispec.Descriptor, by pin.By, _ bool) (pin.Pin, error) {
	if _, ok := p.held[id]; !ok {
		p.held[id] = pin.Pin{ID: id, Root: root, By: by}
	}
	return p.held[id], nil
}

func (pins) Scopes(string) []pin.Pin             { return nil }
func (pins) OfLock(string) (pin.Pin, bool)       { return pin.Pin{}, false }
func (pins) CheckReadable(pin.ID) error          { return nil }
func (pins) Touch(context.Context, pin.ID) error { return nil }

type noImages struct{ decide.Images }

func (noImages) ByRef(string) []imagepin.Entry { return nil }

type noProofs struct{ decide.Proofs }
