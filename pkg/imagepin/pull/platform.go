package pull

import (
	"context"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// otherPlatform returns the platform in the configuration of an image, and logs a warning, if it is not that of the runtime:
// for the node's own platform, a reference to a manifest is accepted whatever its platform is, as in containerd. It returns ""
// if the platform matches, or is not known.
func (u *unpacker) otherPlatform(ctx context.Context, e imagepin.Entry, rt runtimeplatform.Runtime) string {
	if !rt.Native || !images.IsManifestType(e.Root.MediaType) {
		return ""
	}
	p, err := images.ConfigPlatform(ctx, u.content, ocispec.Descriptor{Digest: e.ImageID})
	if err != nil || p.Architecture == "" || rt.Matcher.Match(p) {
		return ""
	}
	platform := imagepin.Bound(platforms.FormatAll(p), 64)
	log.G(ctx).WithFields(log.Fields{"ref": e.Ref, "target": e.Target.String(), "platform": platform}).
		Warn("the image is for another platform, it does not run here without emulation")
	return platform
}
