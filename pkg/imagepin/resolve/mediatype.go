package resolve

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// root resolves the session's reference, and returns the host that answered, with its path.
//
// Registries that redirect manifests to an object store return its media type for them, or none (GitLab does). Then the
// manifest is fetched, and what it says of itself is its media type.
func (s *Session) root(ctx context.Context, resolver remotes.Resolver) (_ ocispec.Descriptor, host string, _ error) {
	_, root, err := resolver.Resolve(ctx, s.ref.String())
	host = s.traffic.answered()
	if err != nil || isImage(root.MediaType) {
		return root, host, err
	}
	typed, err := s.typed(ctx, resolver, root)
	if err != nil {
		return root, host, err
	}
	if typed.MediaType != root.MediaType {
		log.G(ctx).WithField("digest", root.Digest).WithField("mediatype", typed.MediaType).
			Infof("the registry says that the media type of the manifest is %q, using the one in the manifest", root.MediaType)
	}
	return typed, host, nil
}

// typed fetches a manifest or an index, and returns its descriptor with the media type and the size of the content. It
// returns the descriptor unchanged if the content is something else, or is not that of the digest.
func (s *Session) typed(ctx context.Context, resolver remotes.Resolver, root ocispec.Descriptor) (ocispec.Descriptor, error) {
	f, err := resolver.Fetcher(ctx, s.ref.String())
	if err != nil {
		return root, err
	}
	// The media type selects the endpoint for manifests. The registry may have returned a wrong size.
	rc, err := f.Fetch(ctx, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: root.Digest, Size: docker.MaxManifestSize})
	if err != nil {
		return root, err
	}
	defer rc.Close()
	body, err := io.ReadAll(io.LimitReader(rc, docker.MaxManifestSize))
	if errdefs.IsNotFound(err) || errors.Is(err, io.ErrUnexpectedEOF) {
		return root, nil
	}
	if err != nil {
		return root, err
	}
	if mediaType := mediaTypeOf(body); mediaType != "" && root.Digest.Algorithm().FromBytes(body) == root.Digest {
		root.MediaType, root.Size = mediaType, int64(len(body))
	}
	return root, nil
}

func isImage(mediaType string) bool {
	return images.IsIndexType(mediaType) || images.IsManifestType(mediaType)
}

// mediaTypeOf returns the media type of a manifest or an index by its content, or "" if the content is something else or
// could be both. In OCI's formats, the field mediaType is optional.
func mediaTypeOf(body []byte) string {
	var doc struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     string          `json:"mediaType"`
		Manifests     json.RawMessage `json:"manifests"`
		Config        json.RawMessage `json:"config"`
		Layers        json.RawMessage `json:"layers"`
		FSLayers      json.RawMessage `json:"fsLayers"`
	}
	if err := json.Unmarshal(body, &doc); err != nil || doc.SchemaVersion != 2 || doc.FSLayers != nil {
		return ""
	}
	isIndex := doc.Manifests != nil && doc.Config == nil && doc.Layers == nil
	isManifest := doc.Manifests == nil && doc.Config != nil && doc.Layers != nil
	switch {
	case isIndex && doc.MediaType == "":
		return ocispec.MediaTypeImageIndex
	case isManifest && doc.MediaType == "":
		return ocispec.MediaTypeImageManifest
	case isIndex && images.IsIndexType(doc.MediaType), isManifest && images.IsManifestType(doc.MediaType):
		return doc.MediaType
	}
	return ""
}
