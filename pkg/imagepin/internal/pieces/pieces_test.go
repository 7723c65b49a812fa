package pieces

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestPieces checks that pieces are bounded in messages and bytes, and have every message once and in order.
func TestPieces(t *testing.T) {
	const large = Bytes / 3
	for name, sizes := range map[string][]int{
		"none": nil, "one": {1}, "one too large": {2 * Bytes}, "large ones": {large, large, large, large, 2 * Bytes, 1, 1},
		"many": make([]int, 2*Count+1), "full": make([]int, Count),
	} {
		var all, got []*runtime.Image
		for i, size := range sizes {
			all = append(all, &runtime.Image{Id: fmt.Sprint(i), RepoTags: []string{strings.Repeat("x", size)}})
		}
		messages := 0
		for batch := range Split(all) {
			messages++
			if n := proto.Size(&runtime.StreamImagesResponse{Images: batch}); len(batch) == 0 || len(batch) > Count || (n > Bytes+4*Count && len(batch) > 1) {
				t.Errorf("%s: a piece has %d images of %d bytes", name, len(batch), n)
			}
			got = append(got, batch...)
		}
		if len(got) != len(all) {
			t.Fatalf("%s: got %d of %d images in %d pieces", name, len(got), len(all), messages)
		}
		for i := range all {
			if got[i] != all[i] {
				t.Fatalf("%s: image %d differs", name, i)
			}
		}
	}
	for range Split(make([]*runtime.Image, 2*Count)) {
		break // stopping early is allowed
	}
}
