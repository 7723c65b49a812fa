package builders

import (
	"bytes"
	"encoding/json"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/testkit"
)

// attested pushes an index as BuildKit writes it for two platforms, with an attestation of each image.
func attested(attestation func(*workshop, form, v1.Image) images.Entry) func(*workshop, form) string {
	return func(w *workshop, f form) string {
		w.t.Helper()
		var all, attestations []images.Entry
		for _, platform := range []string{foreignPlatform, images.HostPlatform()} {
			img := testkit.App(w.t, images.Options{Platform: platform})
			all, attestations = append(all, images.Entry{Image: img}), append(attestations, attestation(w, f, img))
		}
		idx, err := images.Index(images.OCI, append(all, attestations...)...)
		if err != nil {
			w.t.Fatal(err)
		}
		return w.pushTo(f, idx)
	}
}

func attestation(w *workshop, _ form, of v1.Image) images.Entry {
	w.t.Helper()
	a, err := images.Attestation(of)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// attestationArtifact returns the same attestation as BuildKit writes it with oci-artifact=true: an artifact with a subject, and
// without a configuration.
func attestationArtifact(w *workshop, f form, of v1.Image) images.Entry {
	w.t.Helper()
	entry := attestation(w, f, of)
	manifest, err := entry.Image.Manifest()
	if err != nil {
		w.t.Fatal(err)
	}
	manifest = manifest.DeepCopy()
	if manifest.Subject, err = partial.Descriptor(of); err != nil {
		w.t.Fatal(err)
	}
	none := []byte("{}")
	digest, size, err := v1.SHA256(bytes.NewReader(none))
	if err != nil {
		w.t.Fatal(err)
	}
	manifest.ArtifactType = "application/vnd.docker.attestation.manifest.v1+json"
	manifest.Config = v1.Descriptor{MediaType: "application/vnd.oci.empty.v1+json", Digest: digest, Size: size, Data: none}
	raw, err := json.Marshal(manifest)
	if err != nil {
		w.t.Fatal(err)
	}
	if entry.Image, err = partial.CompressedToImage(artifactImage{entry.Image, raw, none}); err != nil {
		w.t.Fatal(err)
	}
	entry.Platform = &v1.Platform{OS: "unknown", Architecture: "unknown"}
	return entry
}

// artifactImage has the layers of an image, but another manifest and configuration.
type artifactImage struct {
	layers           v1.Image
	manifest, config []byte
}

func (a artifactImage) RawManifest() ([]byte, error)        { return a.manifest, nil }
func (a artifactImage) RawConfigFile() ([]byte, error)      { return a.config, nil }
func (a artifactImage) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (a artifactImage) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	return a.layers.LayerByDigest(h)
}
