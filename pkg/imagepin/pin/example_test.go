package pin_test

import (
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Pins are in containerd's metadata. A new process loads them.
func ExampleStore_MakeForNamespace() {
	t, end := ctdtest.Example()
	defer end()
	node := ctdtest.New(t)
	ctx := node.Context(t)
	config := pin.Config{Images: node.Images, Namespaces: ctdtest.Namespaces{DB: node.DB}}
	build := func(text string) ocispec.Descriptor {
		return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString(text), Size: 607}
	}

	id := pin.ID{Scope: policy.NodeScope, Ref: "registry.example/shop/cart:v7"}
	pins := pin.New(config)
	if _, err := pins.MakeForNamespace(ctx, "", id, build("first build"), pin.ByUse, false); err != nil {
		fmt.Println(err)
		return
	}
	// The first digest stays. An operator moves it.
	held, err := pins.MakeForNamespace(ctx, "", id, build("second build"), pin.ByUse, false)
	fmt.Println(held.Root.Digest == build("first build").Digest, err)
	if _, err := pins.Move(ctx, id, build("second build"), pin.ByOperator, false); err != nil {
		fmt.Println(err)
		return
	}

	restarted := pin.New(config)
	if err := restarted.Load(ctx); err != nil {
		fmt.Println(err)
		return
	}
	held, ok := restarted.Get(id)
	fmt.Println(held.Root.Digest == build("second build").Digest, held.By, ok)
	// Output:
	// true <nil>
	// true operator true
}
