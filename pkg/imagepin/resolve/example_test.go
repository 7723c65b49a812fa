package resolve_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// A tag is resolved with one HEAD request.
func ExampleResolver_Resolve() {
	blobs := ctdtest.Blobs{}
	index := blobs.Index(blobs.Image("linux/amd64", "cart", nil).Manifest)
	server := httptest.NewServer(ctdtest.Registry{Blobs: blobs, Root: index})
	defer server.Close()

	prover, err := resolve.NewProver(make([]byte, 32)) // a secret of the node
	if err != nil {
		fmt.Println(err)
		return
	}
	resolver := resolve.New(resolve.Config{Timeout: time.Minute, Prover: prover})
	ref, err := imagepin.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/shop/cart:v7")
	if err != nil {
		fmt.Println(err)
		return
	}
	resolved, err := resolver.Resolve(context.Background(), ref, resolve.Credential{})
	fmt.Println(resolved.Root.MediaType, resolved.Root.Digest == index.Digest, err)

	server.Close()
	_, err = resolver.Resolve(context.Background(), ref, resolve.Credential{})
	fmt.Println("unavailable:", resolve.Unavailable(err))
	// Output:
	// application/vnd.oci.image.index.v1+json true <nil>
	// unavailable: true
}
