package pull

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// provider has blobs in memory because a database is too slow for fuzzing.
type provider ctdtest.Blobs

type blobReader struct {
	b []byte
}

func (r blobReader) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(r.b)) {
		return 0, errors.New("read past the end")
	}
	return copy(p, r.b[off:]), nil
}

func (r blobReader) Size() int64  { return int64(len(r.b)) }
func (r blobReader) Close() error { return nil }

func (p provider) ReaderAt(_ context.Context, d ocispec.Descriptor) (content.ReaderAt, error) {
	b, ok := p[d.Digest]
	if !ok {
		return nil, errdefs.ErrNotFound
	}
	return blobReader{b}, nil
}

// FuzzChoose checks that choose returns for any index, without a panic, and only a manifest that matches the platform
// and is not an attestation.
func FuzzChoose(f *testing.F) {
	blobs := ctdtest.Blobs{}
	amd64, arm64 := blobs.Image("linux/amd64", "app", nil).Manifest, blobs.Image("linux/arm64", "app", nil).Manifest
	attestation := amd64
	attestation.Annotations = map[string]string{attestationAnnotation: "attestation-manifest"}
	plain := amd64
	plain.Platform = nil
	seed := func(manifests ...ocispec.Descriptor) {
		d := blobs.Index(manifests...)
		f.Add(blobs[d.Digest], ocispec.MediaTypeImageIndex)
	}
	seed(amd64, arm64)
	seed(attestation, arm64)
	seed(plain)
	seed(blobs.Index(arm64, attestation), blobs.Index(amd64))
	seed()
	f.Add([]byte(`{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:short","platform":{"os":"linux","architecture":"amd64"}}]}`), ocispec.MediaTypeImageIndex)
	f.Add([]byte(`{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"x"}],"layers":[{}]}`), images.MediaTypeDockerSchema2ManifestList)
	f.Add([]byte(`{"manifests":null}`), ocispec.MediaTypeImageIndex)
	f.Add([]byte(`[]`), ocispec.MediaTypeImageManifest)
	f.Add(blobs[amd64.Digest], ocispec.MediaTypeImageManifest)

	var all []runtimeplatform.Runtime
	for _, platform := range []string{"", "linux/arm64", "linux/arm/v7", "windows/amd64"} {
		all = append(all, runtimeOf(f, platform))
	}
	f.Fuzz(func(t *testing.T, data []byte, mediaType string) {
		have := ctdtest.Blobs{}.With(blobs)
		root := have.Add(mediaType, data)
		for _, rt := range all {
			c := &chooser{content: provider(have), runtime: rt, ensure: func(context.Context, ocispec.Descriptor) error { return nil }}
			path, err := c.choose(t.Context(), root)
			if err != nil {
				continue
			}
			chosen := path[len(path)-1]
			if path[0].Digest != root.Digest || !images.IsManifestType(chosen.MediaType) || chosen.Digest.Validate() != nil {
				t.Fatalf("path %v does not lead from the root to a manifest", path)
			}
			if chosen.Annotations[attestationAnnotation] != "" {
				t.Errorf("chose an attestation: %v", chosen)
			}
			if chosen.Platform != nil && len(path) > 1 && !rt.Matcher.Match(*chosen.Platform) {
				t.Errorf("chose platform %v for %s", chosen.Platform, rt.Target)
			}
			if chosen.Platform == nil && !(rt.Native && len(path) == 1) {
				wantConfigPlatform(t, have, chosen, rt)
			}
		}
	})
}

// wantConfigPlatform checks the platform of a manifest whose descriptor has none.
func wantConfigPlatform(t *testing.T, have ctdtest.Blobs, manifest ocispec.Descriptor, rt runtimeplatform.Runtime) {
	t.Helper()
	var m ocispec.Manifest
	if err := json.Unmarshal(have[manifest.Digest], &m); err != nil {
		t.Fatalf("manifest %s: %v", manifest.Digest, err)
	}
	p, err := images.ConfigPlatform(t.Context(), provider(have), m.Config)
	if err != nil || !rt.Matcher.Match(p) {
		t.Errorf("chose platform %v for %s: %v", p, rt.Target, err)
	}
}

// FuzzParseReference checks that a valid reference has a stable normalized form and a record name for a digest.
func FuzzParseReference(f *testing.F) {
	for _, s := range []string{
		"busybox", "busybox:1", "docker.io/library/busybox@sha256:" + digest.FromString("x").Encoded(), "localhost:5000/a/b:c", "UPPER",
		"a@b", ":", "registry.example/app:1@sha256:" + digest.FromString("y").Encoded(), "[::1]:5000/app", "sha256:" + digest.FromString("z").Encoded(),
	} {
		f.Add(s)
	}
	d := digest.FromString("root")
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := imagepin.ParseReference(s)
		if err != nil {
			var e *imagepin.Error
			if !errors.As(err, &e) || e.Reason != imagepin.InvalidReference {
				t.Errorf("%q: got %v, want reason InvalidReference", s, err)
			}
			return
		}
		again, err := imagepin.ParseReference(ref.String())
		if err != nil || again.String() != ref.String() {
			t.Errorf("%q parses as %s and then as %v, %v", s, ref, again, err)
		}
		name, err := store.RecordName(ref, d)
		if err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		record, err := imagepin.ParseReference(name)
		if err != nil || record.String() != name || record.Name() != ref.Name() {
			t.Errorf("%q: record %q parses as %v, %v", s, name, record, err)
		}
	})
}
