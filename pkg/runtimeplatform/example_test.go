package runtimeplatform_test

import (
	"fmt"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

func ExampleNew() {
	set, err := runtimeplatform.New("runc", []runtimeplatform.Handler{
		{Name: "runc", Snapshotter: "overlayfs"},
		{Name: "kata-arm", Platform: "linux/arm64", Snapshotter: "native"},
	}, runtimeplatform.Host{Spec: ocispec.Platform{OS: "linux", Architecture: "amd64"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, target := range set.Targets() {
		fmt.Println(target, set.Handlers(target))
	}

	arm, err := set.Lookup("kata-arm")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(arm.Matcher.Match(platforms.MustParse("linux/amd64")))
	fmt.Println(arm.Matcher.Less(platforms.MustParse("linux/arm64"), platforms.MustParse("linux/arm/v7")))

	_, err = set.Lookup("gvisor")
	fmt.Println(err)
	// Output:
	// linux/amd64 on overlayfs [runc]
	// linux/amd64 on native []
	// linux/arm64 on native [kata-arm]
	// false
	// true
	// unknown runtime handler "gvisor": this node has "kata-arm", "runc"
}
