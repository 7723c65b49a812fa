package pull

import (
	"testing"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TestOtherPlatform reports the platform of an image only if its reference resolves to a manifest that is not for the node.
func TestOtherPlatform(t *testing.T) {
	n := ctdtest.New(t, "native")
	ctx, done := n.Lease(t)
	defer done()
	blobs := ctdtest.Blobs{}
	arm, amd, none := blobs.Image("linux/arm64", "app", nil), blobs.Image("linux/amd64", "app", nil), blobs.AddJSON(ocispec.MediaTypeImageConfig, ocispec.Image{})
	index := blobs.Index(amd.Manifest)
	n.Write(ctx, t, blobs)
	u := &unpacker{content: n.Content}
	native := runtimeplatform.Runtime{Native: true, Matcher: platforms.Only(platforms.MustParse("linux/amd64"))}
	for _, test := range []struct {
		name    string
		root    ocispec.Descriptor
		config  ocispec.Descriptor
		runtime runtimeplatform.Runtime
		want    string
	}{
		{"another platform", arm.Manifest, arm.Config, native, "linux/arm64"},
		{"the node's platform", amd.Manifest, amd.Config, native, ""},
		{"an index", index, arm.Config, native, ""},
		{"a configured platform", arm.Manifest, arm.Config, runtimeplatform.Runtime{Matcher: native.Matcher}, ""},
		{"no platform", arm.Manifest, none, native, ""},
		{"the configuration is gone", arm.Manifest, blobs.Image("linux/s390x", "gone", nil).Config, native, ""},
	} {
		if got := u.otherPlatform(ctx, imagepin.Entry{Root: test.root, ImageID: test.config.Digest}, test.runtime); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}
