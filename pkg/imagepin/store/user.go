package store

import (
	"context"
	"encoding/json"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/log"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// withUser reads the user of an entry whose label has no room for it. If the configuration cannot be read, the user
// stays unknown, as for an image that names none.
func (s *presence) withUser(ctx context.Context, e imagepin.Entry) imagepin.Entry {
	if !e.UserOmitted || e.User != "" {
		return e
	}
	var config ocispec.Image
	b, err := content.ReadBlob(ctx, s.config.Content, ocispec.Descriptor{Digest: e.ImageID})
	if err == nil {
		err = json.Unmarshal(b, &config)
	}
	if err != nil {
		log.G(ctx).WithError(imagepin.BoundError(err, imagepin.MaxLogText)).WithField("key", e.Key.String()).Warn("image user is unknown: cannot read the image configuration")
	}
	e.User = config.Config.User
	return e
}
