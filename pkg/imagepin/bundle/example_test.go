package bundle_test

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// A bundle has a lock, and the content of its images.
func ExampleWrite() {
	t, end := ctdtest.Example()
	defer end()
	source := newMemory()
	index := source.index(t, source.manifest(t, "linux/amd64", []byte("layer")), source.manifest(t, "linux/arm64", []byte("layer")))
	ref, err := imagepin.ParseReference("registry.example/shop/cart:v7@" + index.Digest.String())
	if err != nil {
		fmt.Println(err)
		return
	}
	release, err := lock.New([]lock.Image{{ID: "registry.example/shop/cart:v7", Ref: ref.(reference.Canonical)}})
	if err != nil {
		fmt.Println(err)
		return
	}

	path := filepath.Join(t.TempDir(), "release.tar.zst")
	if _, err := bundle.Write(context.Background(), path, bundle.Options{Lock: release}, source); err != nil {
		fmt.Println(err)
		return
	}
	b, err := bundle.Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	fmt.Println(b.Verify(context.Background(), nil))
	fmt.Println(b.Lock().Images[0].ID, b.Has(index.Digest))
	// Output:
	// <nil>
	// registry.example/shop/cart:v7 true
}
