package imagepin_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// A key is stored as one label on a containerd image record.
func ExampleEncodeKeyLabel() {
	entry := imagepin.Entry{
		Key: imagepin.Key{
			Ref:    "registry.example/shop/cart:v7",
			Target: runtimeplatform.Target{Platform: "linux/arm64", Snapshotter: "overlayfs"},
		},
		Root:     ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString("index"), Size: 607},
		Manifest: digest.FromString("manifest"),
		ImageID:  digest.FromString("configuration"),
		ChainID:  digest.FromString("layers"),
		ReadyAt:  time.Unix(1_700_000_000, 0).UTC(),
		Source:   imagepin.SourcePull,
	}
	name, value, err := imagepin.EncodeKeyLabel(entry)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(strings.HasPrefix(name, imagepin.KeyLabelPrefix), imagepin.IsKeyLabel(name))

	decoded, err := imagepin.DecodeKeyLabel(name, value)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(decoded.Key)
	fmt.Println(decoded.Manifest == entry.Manifest)
	// Output:
	// true true
	// registry.example/shop/cart:v7 for linux/arm64 on overlayfs
	// true
}

// A short name is normalized as in containerd's CRI.
func ExampleParseReference() {
	d := digest.FromString("cart")
	for _, name := range []string{"redis", "shop/cart:v7", "registry.example/cart:v7@" + d.String(), "cart:"} {
		ref, err := imagepin.ParseReference(name)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(ref)
	}
	// Output:
	// docker.io/library/redis:latest
	// docker.io/shop/cart:v7
	// registry.example/cart@sha256:1c42ddc0285b9c25135be3bf345e6a041271b784b22a6f6cab6588dab93c5980
	// InvalidReference: "cart:": invalid reference format
	// Write it as [registry/]repository[:tag][@digest].
}
