package registry

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// attestationAnnotation marks a manifest of an index that describes another manifest, and is no image (BuildKit,
// docs/attestations/attestation-storage.md).
const attestationAnnotation = "vnd.docker.reference.type"

// unknown is the operating system and the architecture of such a manifest.
const unknown = "unknown"

// Platforms returns the digest of the manifest of each platform of an index or a manifest, as in platforms.FormatAll. If an
// index has several manifests of a platform, it is the first. Manifests without a platform do not count. It reads the
// index, or the manifest and its configuration. It returns nil for an artifact without platforms.
func (c *Client) Platforms(ctx context.Context, repo reference.Named, root ocispec.Descriptor) (map[string]digest.Digest, error) {
	data, err := c.ReadAll(ctx, repo, root)
	if err != nil {
		return nil, err
	}
	if images.IsIndexType(root.MediaType) {
		return platformsOfIndex(repo, root, data)
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		return nil, corrupt(repo, fmt.Sprintf("%s is not a manifest: %v", root.Digest, err))
	}
	if !images.IsConfigType(manifest.Config.MediaType) {
		return nil, nil
	}
	data, err = c.ReadAll(ctx, repo, manifest.Config)
	if err != nil {
		return nil, err
	}
	var config ocispec.Image
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, corrupt(repo, fmt.Sprintf("%s is not a configuration: %v", manifest.Config.Digest, err))
	}
	if config.OS == "" || config.Architecture == "" {
		return nil, nil
	}
	return map[string]digest.Digest{format(config.Platform): root.Digest}, nil
}

func platformsOfIndex(repo reference.Named, root ocispec.Descriptor, data []byte) (map[string]digest.Digest, error) {
	var index ocispec.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, corrupt(repo, fmt.Sprintf("%s is not an index: %v", root.Digest, err))
	}
	all := make(map[string]digest.Digest, len(index.Manifests))
	for _, m := range index.Manifests {
		if m.Platform == nil || m.Platform.OS == unknown || m.Platform.Architecture == unknown || m.Annotations[attestationAnnotation] != "" {
			continue
		}
		if err := m.Digest.Validate(); err != nil {
			return nil, corrupt(repo, fmt.Sprintf("%s: digest of a manifest: %v", root.Digest, err))
		}
		if name := format(*m.Platform); all[name] == "" {
			all[name] = m.Digest
		}
	}
	return all, nil
}

func format(p ocispec.Platform) string { return platforms.FormatAll(platforms.Normalize(p)) }
