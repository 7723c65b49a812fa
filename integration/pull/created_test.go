package pull

import (
	"strings"
	"testing"

	coreimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestContainerBeforeTheCRIKnowsATag creates a container by image ID while containerd's CRI still has a tag of that
// image that a pull has moved to another one. The CRI delays the events of a tag after it could not read one. Stock
// containerd creates the container from the snapshot of the other image.
func TestContainerBeforeTheCRIKnowsATag(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	tag, _ := r.Push("app:latest", images.Options{Version: "v1"}, images.HostPlatform())
	id := r.MustPull(tag, "")
	_, newer := r.Push("app:latest", images.Options{Version: "v2"}, images.HostPlatform())
	_, newer, _ = strings.Cut(newer, "@")
	p := r.MustPod("")

	offset, k8s := r.LogOffset(), namespaces.WithNamespace(r.Ctx, node.Namespace)
	store := r.Client().ImageService()
	unreadable := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("nothing"), Size: 7}
	if _, err := store.Update(k8s, coreimages.Image{Name: tag, Target: unreadable}, "target"); err != nil {
		t.Fatal(err)
	}
	r.Eventually("the CRI cannot read the tag", func() bool {
		return strings.Contains(r.LogsSince(offset), "Failed to handle event") && strings.Contains(r.LogsSince(offset), unreadable.Digest.String())
	})
	pulled := make(chan error, 1)
	go func() {
		_, err := r.Pull(r.Ctx, tag, "")
		pulled <- err
	}()
	r.Eventually("the pull has moved the tag", func() bool {
		img, err := store.Get(k8s, tag)
		return err == nil && img.Target.Digest.String() == newer
	})
	r.WantLine(p, node.ContainerOptions{Image: id}, testkit.Line(images.Options{Version: "v1"}, images.HostPlatform()))
	if err := <-pulled; err != nil {
		t.Error(err)
	}
}
