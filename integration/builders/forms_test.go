package builders

import (
	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/images/stargz"
)

// form is an image as a builder pushes it. TestTable compares the forms with RELEASES.md.
type form struct {
	builder string
	name    string // of its repository
	kind    types.MediaType
	layers  string // how those of the node's platform are compressed, see compressions
	also    string // what there is beside images
	push    func(w *workshop, f form) (digest string)
	ggcr    bool // it is in go-containerregistry's registry, and not in docker-registry
}

const ggcr = "go-containerregistry"

// forms are pushed in this order: skopeo copies what buildah has pushed.
var forms = []form{
	{builder: "buildah", name: "buildah-gzip", kind: types.OCIManifestSchema1, layers: "gzip", push: push("app")},
	{builder: "buildah", name: "buildah-zstd", kind: types.OCIManifestSchema1, layers: "zstd", push: push("app", "--compression-format", "zstd", "--force-compression")},
	{builder: "buildah", name: "buildah-chunked", kind: types.OCIManifestSchema1, layers: "zstd:chunked", push: push("app", "--compression-format", "zstd:chunked", "--force-compression")},
	{builder: "buildah", name: "buildah-index", kind: types.OCIImageIndex, layers: "gzip", push: push("all")},
	{builder: "buildah", name: "buildah-artifact", kind: types.OCIImageIndex, layers: "gzip", also: "an artifact", push: push("all-artifact")},
	{builder: "buildah", name: "buildah-docker", kind: types.DockerManifestSchema2, layers: "gzip", push: push("app", "--format", "v2s2", "--force-compression", "--compression-format", "gzip")},
	{builder: "buildah", name: "buildah-list", kind: types.DockerManifestList, layers: "gzip", push: push("all", "--format", "v2s2")},
	{builder: "podman", name: "podman-gzip", kind: types.OCIManifestSchema1, layers: "gzip", push: push("podman-app")},
	{builder: "podman", name: "podman-chunked", kind: types.OCIManifestSchema1, layers: "zstd:chunked", push: push("podman-app", "--compression-format", "zstd:chunked", "--force-compression")},
	{builder: "podman", name: "podman-both", kind: types.OCIImageIndex, layers: "gzip", also: "zstd of each image", push: push("all", "--add-compression", "zstd")},
	{builder: "podman", name: "podman-docker", kind: types.DockerManifestSchema2, layers: "gzip", push: push("podman-app", "--format", "v2s2")},
	{builder: "skopeo", name: "skopeo-zstd", kind: types.OCIManifestSchema1, layers: "zstd", push: skopeo("buildah-gzip", "--dest-compress-format", "zstd")},
	{builder: "skopeo", name: "skopeo-chunked", kind: types.OCIManifestSchema1, layers: "zstd:chunked", push: skopeo("buildah-gzip", "--dest-compress-format", "zstd:chunked")},
	{builder: "skopeo", name: "skopeo-plain", kind: types.OCIManifestSchema1, layers: "uncompressed", push: skopeoUncompressed},
	{builder: "skopeo", name: "skopeo-index", kind: types.OCIImageIndex, layers: "gzip", push: skopeo("buildah-index", "--all"), ggcr: true},
	{builder: "skopeo", name: "skopeo-docker", kind: types.DockerManifestSchema2, layers: "gzip", push: skopeo("buildah-gzip", "--format", "v2s2")},
	{builder: "skopeo", name: "skopeo-list", kind: types.DockerManifestList, layers: "gzip", push: skopeo("buildah-index", "--all", "--format", "v2s2")},
	{builder: "oras", name: "oras-gzip", kind: types.OCIManifestSchema1, layers: "gzip", push: orasImage},
	{builder: "oras", name: "oras-index", kind: types.OCIImageIndex, layers: "gzip", push: orasIndex},
	{builder: "oras", name: "oras-attached", kind: types.OCIManifestSchema1, layers: "gzip", also: "a referrer", push: orasAttached, ggcr: true},
	{builder: ggcr, name: "ggcr-gzip", kind: types.OCIManifestSchema1, layers: "gzip", push: layered(images.OCI, tarball.WithMediaType(types.OCILayer)), ggcr: true},
	{builder: ggcr, name: "ggcr-zstd", kind: types.OCIManifestSchema1, layers: "zstd", push: layered(images.OCI, tarball.WithCompression(compression.ZStd), tarball.WithMediaType(types.OCILayerZStd)), ggcr: true},
	{builder: ggcr, name: "ggcr-plain", kind: types.OCIManifestSchema1, layers: "uncompressed", push: image(images.Options{Compression: images.Uncompressed}), ggcr: true},
	{builder: ggcr, name: "ggcr-estargz", kind: types.OCIManifestSchema1, layers: "estargz", push: converted(images.OCI, stargz.Convert), ggcr: true},
	{builder: ggcr, name: "ggcr-index", kind: types.OCIImageIndex, layers: "gzip", push: index(images.OCI), ggcr: true},
	{builder: ggcr, name: "ggcr-attested", kind: types.OCIImageIndex, layers: "gzip", also: "BuildKit's attestations", push: attested(attestation), ggcr: true},
	{builder: ggcr, name: "ggcr-artifacts", kind: types.OCIImageIndex, layers: "gzip", also: "BuildKit's attestations as artifacts", push: attested(attestationArtifact), ggcr: true},
	{builder: ggcr, name: "ggcr-docker", kind: types.DockerManifestSchema2, layers: "gzip", push: layered(images.Docker), ggcr: true},
	{builder: ggcr, name: "ggcr-list", kind: types.DockerManifestList, layers: "gzip", push: index(images.Docker), ggcr: true},
}
