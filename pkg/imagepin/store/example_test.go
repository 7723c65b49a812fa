package store_test

import (
	"fmt"
	"time"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// A key is recorded with the records that containerd's CRI needs, and found by its reference and its image ID.
func ExampleStore_Put() {
	t, end := ctdtest.Example()
	defer end()
	node := ctdtest.New(t, "overlayfs")
	ctx, done := node.Lease(t)
	defer done()
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", "cart", nil)
	node.Write(ctx, t, blobs)
	node.Unpack(ctx, t, img, "overlayfs")

	runtimes := ctdtest.Runtimes(t, "overlayfs")
	images := store.New(store.Config{
		Records: ctdtest.Records{Store: node.Images}, Content: node.Content, Leases: node.Leases, Snapshotter: node.Snapshotter,
		Runtimes: ctdtest.Always(runtimes),
	})
	key := imagepin.Key{Ref: "registry.example/shop/cart:v7", Target: runtimes.Default().Target}
	if _, err := images.Put(ctx, "", imagepin.Entry{
		Key: key, Root: img.Manifest, Manifest: img.Manifest.Digest, ImageID: img.Config.Digest, ChainID: img.ChainID,
		ReadyAt: time.Now(), Source: imagepin.SourcePull,
		Record: "registry.example/shop/cart@" + img.Manifest.Digest.String(), RecordTarget: img.Manifest,
	}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(images.ByRef(key.Ref)[0].Key)
	fmt.Println(len(images.ByID(img.Config.Digest)), "key,", len(node.Records(t)), "records")
	// Output:
	// registry.example/shop/cart:v7 for linux/amd64 on overlayfs
	// 1 key, 3 records
}
