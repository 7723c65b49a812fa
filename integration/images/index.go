package images

import (
	"bytes"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Entry is one entry of an index: an image, or another index.
type Entry struct {
	Image v1.Image
	Index v1.ImageIndex
	// Platform is the platform in the descriptor. nil means the platform in the image's config, or none for an index.
	Platform *v1.Platform
	// NoPlatform omits the platform in the descriptor.
	NoPlatform bool
	// Annotations are the annotations of the descriptor.
	Annotations map[string]string
}

// Index builds an index of the entries, in their order.
func Index(format Format, entries ...Entry) (v1.ImageIndex, error) {
	mediaType := types.OCIImageIndex
	if format == Docker {
		mediaType = types.DockerManifestList
	}
	idx := mutate.IndexMediaType(empty.Index, mediaType)
	for _, e := range entries {
		add, err := e.addendum()
		if err != nil {
			return nil, err
		}
		idx = mutate.AppendManifests(idx, add)
	}
	return idx, nil
}

func (e Entry) addendum() (mutate.IndexAddendum, error) {
	var add mutate.Appendable = e.Index
	if e.Image != nil {
		add = e.Image
	}
	desc, err := partial.Descriptor(add)
	if err != nil {
		return mutate.IndexAddendum{}, err
	}
	desc.Annotations = e.Annotations
	desc.Platform = e.Platform
	if desc.Platform == nil && e.Image != nil {
		cfg, err := e.Image.ConfigFile()
		if err != nil {
			return mutate.IndexAddendum{}, err
		}
		desc.Platform = cfg.Platform()
	}
	if e.NoPlatform {
		desc.Platform = nil
	}
	return mutate.IndexAddendum{Add: add, Descriptor: *desc}, nil
}

// Attestation builds the index entry that BuildKit adds for an image: a manifest of in-toto statements. Its platform is
// unknown/unknown and its annotations name the image's manifest.
func Attestation(of v1.Image) (Entry, error) {
	d, err := of.Digest()
	if err != nil {
		return Entry{}, err
	}
	statement := fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v0.1","predicateType":"https://slsa.dev/provenance/v0.2","subject":[{"name":"test","digest":{"sha256":%q}}],"predicate":{}}`, d.Hex)
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{
		Layer:       static.NewLayer(statement, "application/vnd.in-toto+json"),
		Annotations: map[string]string{"in-toto.io/predicate-type": "https://slsa.dev/provenance/v0.2"},
	})
	if err != nil {
		return Entry{}, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return Entry{}, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "unknown", "unknown"
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		return Entry{}, err
	}
	return Entry{
		Image: img,
		Annotations: map[string]string{
			"vnd.docker.reference.digest": d.String(),
			"vnd.docker.reference.type":   "attestation-manifest",
		},
	}, nil
}

// Raw is a manifest or index as bytes. It can be one that the builders do not build.
type Raw struct {
	MediaType string
	Body      []byte
}

// Digest returns the digest of the body.
func (r Raw) Digest() v1.Hash {
	h, _, _ := v1.SHA256(bytes.NewReader(r.Body)) // reading memory does not fail
	return h
}

// RawOf returns the manifest of an image or index as bytes.
func RawOf(m interface {
	RawManifest() ([]byte, error)
	MediaType() (types.MediaType, error)
}) (Raw, error) {
	body, err := m.RawManifest()
	if err != nil {
		return Raw{}, err
	}
	mt, err := m.MediaType()
	return Raw{MediaType: string(mt), Body: body}, err
}

// Malformed returns manifests and indexes that clients must reject, by their defect. The content that they refer to
// does not exist.
func Malformed() map[string]Raw {
	nowhere := "sha256:" + "00000000000000000000000000000000000000000000000000000000deadbeef"
	obj := func(mt types.MediaType, fields map[string]any) Raw {
		fields["schemaVersion"] = 2
		fields["mediaType"] = mt
		b, err := json.Marshal(fields)
		if err != nil {
			panic(err) // a literal below is not JSON
		}
		return Raw{MediaType: string(mt), Body: b}
	}
	host, _ := ParsePlatform(HostPlatform()) // always parses
	entry := func(digest string, size int64) map[string]any {
		return map[string]any{"mediaType": types.OCIManifestSchema1, "digest": digest, "size": size, "platform": host}
	}
	layer := map[string]any{"mediaType": types.OCILayer, "digest": nowhere, "size": 32}
	return map[string]Raw{
		"index-not-json":         {MediaType: string(types.OCIImageIndex), Body: []byte(`{"schemaVersion": 2, "manifests": [`)},
		"index-html":             {MediaType: string(types.OCIImageIndex), Body: []byte("<html><body>Sign in</body></html>")},
		"index-empty":            obj(types.OCIImageIndex, map[string]any{"manifests": []any{}}),
		"index-bad-digest":       obj(types.OCIImageIndex, map[string]any{"manifests": []any{entry("sha256:short", 10)}}),
		"index-missing-manifest": obj(types.OCIImageIndex, map[string]any{"manifests": []any{entry(nowhere, 428)}}),
		"index-and-layers":       obj(types.OCIImageIndex, map[string]any{"manifests": []any{entry(nowhere, 428)}, "layers": []any{layer}}),
		"manifest-not-json":      {MediaType: string(types.OCIManifestSchema1), Body: []byte(`{"schemaVersion": 2, `)},
		"manifest-no-config":     obj(types.OCIManifestSchema1, map[string]any{"layers": []any{layer}}),
		"manifest-missing-blobs": obj(types.OCIManifestSchema1, map[string]any{
			"config": map[string]any{"mediaType": types.OCIConfigJSON, "digest": nowhere, "size": 2},
			"layers": []any{layer},
		}),
	}
}
