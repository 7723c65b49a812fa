package bundle_test

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
)

func platformsOf(t testing.TB, all ...string) []ocispec.Platform {
	var parsed []ocispec.Platform
	for _, p := range all {
		parsed = append(parsed, parsePlatform(t, p))
	}
	return parsed
}

func TestChosenPlatforms(t *testing.T) {
	f := newFleet(t, 5000)
	for _, c := range []struct {
		platforms       []string
		present, absent []ocispec.Descriptor
	}{
		{nil, []ocispec.Descriptor{f.amd64, f.arm64, f.attestation}, nil},
		{[]string{"linux/amd64"}, []ocispec.Descriptor{f.amd64}, []ocispec.Descriptor{f.arm64, f.attestation}},
		{[]string{"linux/arm64", "linux/amd64"}, []ocispec.Descriptor{f.amd64, f.arm64}, []ocispec.Descriptor{f.attestation}},
		{[]string{"linux/s390x"}, nil, []ocispec.Descriptor{f.amd64, f.arm64, f.attestation}},
	} {
		path := filepath.Join(t.TempDir(), "bundle.tar.zst")
		result := write(t, path, bundle.Options{Lock: f.lock, Platforms: platformsOf(t, c.platforms...)}, f)
		b := open(t, path)
		if err := b.Verify(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		want := slices.Sorted(slices.Values(c.platforms))
		if !slices.Equal(b.Platforms(), want) || !slices.Equal(result.Platforms, want) {
			t.Errorf("platforms %v, want %v", b.Platforms(), want)
		}
		if root, err := b.Blob(f.app.Digest); err != nil || !bytes.Equal(root, f.blobs[f.app.Digest]) {
			t.Errorf("%v: the index differs", c.platforms)
		}
		for _, d := range c.present {
			if _, err := b.Blob(d.Digest); err != nil || !b.Has(d.Digest) {
				t.Errorf("%v: %s is missing", c.platforms, d.Digest)
			}
		}
		var absent []digest.Digest
		for _, a := range b.Absent() {
			absent = append(absent, a.Manifest)
		}
		for _, d := range c.absent {
			if !slices.Contains(absent, d.Digest) || b.Has(d.Digest) {
				t.Errorf("%v: %s is not absent", c.platforms, d.Digest)
			}
		}
		if len(absent) != len(c.absent) || !slices.Equal(b.Absent(), result.Absent) {
			t.Errorf("%v: absent %v, result %v", c.platforms, b.Absent(), result.Absent)
		}
		if (len(result.Unmatched) == 1) != (len(c.present) == 0) {
			t.Errorf("%v: unmatched %v", c.platforms, result.Unmatched)
		}
	}
}

func TestNoImageForAPlatformIsRefused(t *testing.T) {
	f := newFleet(t, 5000)
	l := locked(t, map[string]ocispec.Descriptor{"registry.example/app:v1": f.app})
	_, err := bundle.Write(t.Context(), filepath.Join(t.TempDir(), "b.tar"), bundle.Options{Lock: l, Platforms: platformsOf(t, "linux/s390x")}, f)
	var known *imagepin.Error
	if !errors.As(err, &known) || known.Reason != imagepin.NoMatchingPlatform {
		t.Errorf("error %v", err)
	}
}

func TestBestManifestOfAPlatformIsChosen(t *testing.T) {
	m := newMemory()
	v6, v7, v8 := m.manifest(t, "linux/arm/v6", random(1, 10)), m.manifest(t, "linux/arm/v7", random(2, 10)), m.manifest(t, "linux/arm64", random(3, 10))
	l := locked(t, map[string]ocispec.Descriptor{"registry.example/a:v1": m.index(t, v6, v7), "registry.example/b:v1": m.index(t, v6, v8)})
	path := filepath.Join(t.TempDir(), "bundle.tar")
	write(t, path, bundle.Options{Lock: l, Platforms: platformsOf(t, "linux/arm64")}, m)
	b := open(t, path)
	if b.Has(v6.Digest) || !b.Has(v7.Digest) || !b.Has(v8.Digest) {
		t.Errorf("v6 %v, v7 %v, v8 %v: want the manifests that containerd chooses for arm64", b.Has(v6.Digest), b.Has(v7.Digest), b.Has(v8.Digest))
	}
}

func TestManifestThatAnotherImageNeedsIsNotAbsent(t *testing.T) {
	f := newFleet(t, 5000)
	arm := f.arm64
	arm.Platform = nil
	for _, l := range []map[string]ocispec.Descriptor{
		{"registry.example/app:v1": f.app, "registry.example/arm:v1": arm},
		{"registry.example/app:v1": f.app, "registry.example/all:v1": f.index(t, arm)}, // listed there without a platform
	} {
		path := filepath.Join(t.TempDir(), "bundle.tar")
		write(t, path, bundle.Options{Lock: locked(t, l), Platforms: platformsOf(t, "linux/amd64")}, f)
		b := open(t, path)
		if err := b.Verify(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if !b.Has(arm.Digest) || len(b.Absent()) != 1 {
			t.Errorf("arm64 %v, absent %v", b.Has(arm.Digest), b.Absent())
		}
	}
}

func TestLayersOfAnEarlierLockAreOmitted(t *testing.T) {
	f := newFleet(t, 5000)
	newTop := random(20, 900)
	next := f.manifest(t, "linux/amd64", f.shared, f.large, newTop)
	next.Platform = nil
	newLock := locked(t, map[string]ocispec.Descriptor{"registry.example/app:v2": next, "registry.example/tool:v2": f.tool})
	path := filepath.Join(t.TempDir(), "bundle.tar.zst")
	f.requests()
	result := write(t, path, bundle.Options{Lock: newLock, Since: f.lock}, f)
	requested := f.requests()
	b := open(t, path)
	if err := b.Verify(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	want := slices.Sorted(slices.Values([]digest.Digest{digest.FromBytes(f.shared), digest.FromBytes(f.large), digest.FromBytes(random(5, 700))}))
	if !slices.Equal(b.Omitted(), want) || result.Omitted != 3 || result.OmittedSize != 3000+5000+700 {
		t.Errorf("omitted %v, result %+v", b.Omitted(), result)
	}
	for _, d := range want {
		if b.Has(d) || len(requested[d]) > 0 {
			t.Errorf("%s is in the bundle or was fetched", d)
		}
	}
	since, err := f.lock.Digest()
	if err != nil || b.Since() != since {
		t.Errorf("since %s, want %s, %v", b.Since(), since, err)
	}
	for _, d := range []ocispec.Descriptor{next, f.tool} {
		if _, err := b.Blob(d.Digest); err != nil {
			t.Errorf("manifest %s is missing: metadata is complete", d.Digest)
		}
	}
	all := func(ocispec.Descriptor, []byte) bool { return true }
	if got := layers(t, b, all); len(got) != 1 || got[0] != digest.FromBytes(newTop) {
		t.Errorf("layers %v", got)
	}
}

func TestLayerThatIsAlsoMetadataIsRead(t *testing.T) {
	m := newMemory()
	empty := m.put(ocispec.MediaTypeEmptyJSON, []byte("{}"))
	artifact := m.putJSON(t, ocispec.MediaTypeImageManifest, ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest, ArtifactType: "application/vnd.example", Config: empty, Layers: []ocispec.Descriptor{empty},
	})
	path := filepath.Join(t.TempDir(), "bundle.tar")
	write(t, path, bundle.Options{Lock: locked(t, map[string]ocispec.Descriptor{"registry.example/artifact:v1": artifact})}, m)
	b := open(t, path)
	read := 0
	err := b.ReadBlobs(t.Context(), func(d ocispec.Descriptor) bool { return d.Digest == empty.Digest }, func(_ ocispec.Descriptor, r io.Reader) error {
		data, err := io.ReadAll(r)
		if read++; string(data) != "{}" {
			t.Errorf("the layer has %q", data)
		}
		return err
	})
	if err != nil || read != 1 {
		t.Errorf("the layer was read %d times, %v", read, err)
	}
	if err := b.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

func TestSHA512(t *testing.T) {
	m := newMemory()
	layer, config := random(1, 5000), []byte(`{"os":"linux","architecture":"amd64"}`)
	put := func(mediaType string, data []byte) ocispec.Descriptor {
		d := digest.SHA512.FromBytes(data)
		m.blobs[d], m.types[d] = data, mediaType
		return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
	}
	manifest := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: put(ocispec.MediaTypeImageConfig, config)}
	manifest.Layers = []ocispec.Descriptor{put(ocispec.MediaTypeImageLayer, layer)}
	root := put(ocispec.MediaTypeImageManifest, mustJSON(t, manifest))
	for _, name := range names {
		path := filepath.Join(t.TempDir(), name)
		write(t, path, bundle.Options{Lock: locked(t, map[string]ocispec.Descriptor{"registry.example/app:v1": root})}, m)
		if err := verify(t, path); err != nil {
			t.Error(err)
		}
	}
}
