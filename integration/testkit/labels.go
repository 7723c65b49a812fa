package testkit

import (
	"testing"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/integration/node"
)

// PinnedLabel is the label of an image record with which containerd's CRI, an operator or a distribution such as k3s pins an image.
const PinnedLabel = "io.cri-containerd.pinned"

// LabelImage sets a label of an image record, as ctr images label does. An empty value removes it.
func LabelImage(t *testing.T, n *node.Node, record, label, value string) {
	t.Helper()
	_, err := n.Client().ImageService().Update(NSContext(Context(t)), images.Image{Name: record, Labels: map[string]string{label: value}}, "labels."+label)
	if err != nil {
		t.Fatal(err)
	}
}
