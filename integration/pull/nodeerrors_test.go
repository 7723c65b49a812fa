package pull

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestLayersThatTheNodeCannotStore pulls layers that a file system cannot store. The error is not one of the registry, names
// the snapshotter, and leaves nothing. It has its type in containerd, and only its text with imagepin serve.
func TestLayersThatTheNodeCannotStore(t *testing.T) {
	t.Parallel()
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }
	// The layer is the second one: overlayfs writes whiteouts only then.
	for _, test := range []struct {
		name     string
		handlers []string
		layer    []tar.Header
		cause    string
		hint     string
	}{
		// The native snapshotter removes the file instead of writing a whiteout.
		{"whiteout", []string{""}, []tar.Header{file("a"), file(".wh.a")}, "file exists", "a file and its whiteout"},
		{"long-name", []string{"", "native"}, []tar.Header{file(strings.Repeat("n", 300))}, "file name too long", "a name that is too long"},
		{"link", []string{"", "native"}, []tar.Header{{Typeflag: tar.TypeLink, Name: "a", Linkname: "gone"}}, "no such file or directory", "a hard link to a file that it does not have"},
	} {
		for _, handler := range test.handlers {
			t.Run(strings.TrimSpace(test.name+" "+handler), func(t *testing.T) {
				var plain bytes.Buffer
				w := tar.NewWriter(&plain)
				for _, h := range test.layer {
					if err := w.WriteHeader(&h); err != nil {
						t.Fatal(err)
					}
				}
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
				base := goodLayer(t)
				brokenImage{
					layer: base.packed, above: [][]byte{gzipped(t, plain.Bytes())}, diffIDs: []string{base.diffID, digestOf(plain.Bytes())},
				}.push(t, reg, test.name)
				err := checkFailedPull(t, n, reg.Ref(test.name+":v1"), handler, testkit.Failure{Name: "CannotPullImage", Code: codes.Internal})
				snapshotter := "overlayfs"
				if handler != "" {
					snapshotter = handler
				}
				for _, want := range []string{"an error of the node, not of the registry", test.cause, "\nThe filesystem of snapshotter " + snapshotter, test.hint} {
					if err != nil && !strings.Contains(err.Error(), want) {
						t.Errorf("the error does not contain %q: %v", want, err)
					}
				}
				testkit.Push(t, reg, test.name+":v1", testkit.App(t, images.Options{}))
				checkNextPull(t, n, reg.Ref(test.name+":v1"), handler)
			})
		}
	}
}
