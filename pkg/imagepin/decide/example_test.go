package decide_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// The first pod of a revision pins its tag. Later pods of the revision run the same digest, even if the tag moves.
func ExampleDecider_Decide() {
	t, end := ctdtest.Example()
	defer end()
	registry := ctdtest.Registry{Blobs: ctdtest.Blobs{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { registry.ServeHTTP(w, r) }))
	defer server.Close()
	push := func(build string) ocispec.Descriptor {
		registry.Root = registry.Blobs.Index(registry.Blobs.Image("linux/amd64", build, nil).Manifest)
		return registry.Root
	}

	node := ctdtest.New(t)
	ctx := node.Context(t)
	rules, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Workload}, nil, []string{"pod-template-hash"})
	if err != nil {
		fmt.Println(err)
		return
	}
	prover, err := resolve.NewProver(make([]byte, 32)) // a secret of the node
	if err != nil {
		fmt.Println(err)
		return
	}
	resolver := resolve.New(resolve.Config{Timeout: time.Minute, Prover: prover})
	images := store.New(store.Config{Records: ctdtest.Records{Store: node.Images}})
	pins := pin.New(pin.Config{Images: node.Images, Namespaces: ctdtest.Namespaces{DB: node.DB}})
	decider := decide.New(decide.Config{
		Policy: ctdtest.Always(rules), Pins: pins, Images: images, Registry: resolver,
		Proofs: decide.NodeProofs{Prover: resolver, Stores: []decide.ProofStore{images, pins}},
	})
	ref, err := imagepin.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/shop/cart:v7")
	if err != nil {
		fmt.Println(err)
		return
	}
	first := push("first build")
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
		fmt.Printf("%s: first build %t, scope %s\n", name, v.Root.Digest == first.Digest, v.Pin.Scope)
	}

	start("pod 1", "5f4d")
	push("second build")
	start("pod 2", "5f4d")
	start("pod 3 of the next revision", "77c9")
	// Output:
	// pod 1: first build true, scope workload/shop/pod-template-hash=5f4d
	// pod 2: first build true, scope workload/shop/pod-template-hash=5f4d
	// pod 3 of the next revision: first build false, scope workload/shop/pod-template-hash=77c9
}
