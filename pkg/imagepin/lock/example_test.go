package lock_test

import (
	"fmt"
	"strings"

	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

const july = `apiVersion: imgpkg.carvel.dev/v1alpha1
kind: ImagesLock
images:
- image: registry.example/cart@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
  annotations:
    kbld.carvel.dev/id: registry.example/cart:v7
- image: registry.example/mail@sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752
  annotations:
    kbld.carvel.dev/id: registry.example/mail:v2
`

// A lock names the digest of each image of a release.
func ExampleParse() {
	l, err := lock.Parse([]byte(july))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, i := range l.Images {
		tag, _ := i.Tag()
		fmt.Println(tag, i.Ref.Digest().Encoded()[:8])
	}
	// Output:
	// registry.example/cart:v7 9f86d081
	// registry.example/mail:v2 60303ae2
}

// The next release has another build of one image.
func ExampleCompare() {
	before, err := lock.Parse([]byte(july))
	if err != nil {
		fmt.Println(err)
		return
	}
	now, err := lock.Parse([]byte(strings.Replace(july, "9f86d081", "00000000", 1)))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range lock.Compare(before, now) {
		fmt.Println(c.Name, c.Old.Encoded()[:8], "->", c.New.Encoded()[:8])
	}
	// Output:
	// registry.example/cart:v7 9f86d081 -> 00000000
}
