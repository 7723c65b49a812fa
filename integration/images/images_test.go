package images_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/imagepin/imagepin/integration/images"
)

func app(t *testing.T, opts images.Options) v1.Image {
	t.Helper()
	img, err := images.App(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func digest(t *testing.T, d interface{ Digest() (v1.Hash, error) }) v1.Hash {
	t.Helper()
	h, err := d.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestAppIsReproducibleAndValid(t *testing.T) {
	for _, format := range []images.Format{images.OCI, images.Docker} {
		for _, comp := range []images.Compression{images.Gzip, images.Zstd, images.Uncompressed} {
			t.Run(string(format)+"/"+string(comp), func(t *testing.T) {
				opts := images.Options{
					Platform: "linux/arm64/v8", User: "7:8", Format: format, Compression: comp,
					Files: []images.Files{{"/etc/a/b": []byte("x")}}, Random: []images.Random{{Files: 3, Size: 1000}},
					Labels: map[string]string{"k": "v"}, Volumes: []string{"/data"}, Annotations: map[string]string{"a": "b"},
				}
				img := app(t, opts)
				layers, err := img.Layers()
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range layers {
					if comp != images.Gzip {
						break // the validator supports only gzip; TestFormats runs the others
					}
					if err := validate.Layer(l); err != nil {
						t.Error(err)
					}
				}
				if a, b := digest(t, img), digest(t, app(t, opts)); a != b {
					t.Errorf("two builds have different digests: %s and %s", a, b)
				}
				cfg, err := img.ConfigFile()
				if err != nil {
					t.Fatal(err)
				}
				if got := cfg.Platform().String(); got != opts.Platform {
					t.Errorf("got platform %s, want %s", got, opts.Platform)
				}
				if len(cfg.RootFS.DiffIDs) != 4 {
					t.Errorf("got %d layers, want 4", len(cfg.RootFS.DiffIDs))
				}
			})
		}
	}
}

func TestOneConfigInTwoManifests(t *testing.T) {
	a, b := app(t, images.Options{Compression: images.Gzip}), app(t, images.Options{Compression: images.Zstd})
	if digest(t, a) == digest(t, b) {
		t.Error("got equal manifests, want two")
	}
	ca, _ := a.ConfigName()
	cb, _ := b.ConfigName()
	if ca != cb {
		t.Errorf("got configs %s and %s, want one", ca, cb)
	}
}

func TestIndex(t *testing.T) {
	amd, arm := app(t, images.Options{Platform: "linux/amd64"}), app(t, images.Options{Platform: "linux/arm64"})
	windows := app(t, images.Options{Platform: "windows(10.0.20348.2402)/amd64"})
	attestation, err := images.Attestation(amd)
	if err != nil {
		t.Fatal(err)
	}
	nested, err := images.Index(images.OCI, images.Entry{Image: windows})
	if err != nil {
		t.Fatal(err)
	}
	idx, err := images.Index(images.OCI, images.Entry{Image: amd}, attestation, images.Entry{Image: arm, NoPlatform: true}, images.Entry{Index: nested})
	if err != nil {
		t.Fatal(err)
	}
	m, err := idx.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range m.Manifests {
		platform := "none"
		if d.Platform != nil {
			platform = d.Platform.String()
		}
		got = append(got, platform+" "+string(d.MediaType))
	}
	want := []string{
		"linux/amd64 " + string(types.OCIManifestSchema1), "unknown/unknown " + string(types.OCIManifestSchema1),
		"none " + string(types.OCIManifestSchema1), "none " + string(types.OCIImageIndex),
	}
	if !slices.Equal(got, want) {
		t.Errorf("got entries %q, want %q", got, want)
	}
	if a := m.Manifests[1].Annotations; a["vnd.docker.reference.type"] != "attestation-manifest" || a["vnd.docker.reference.digest"] != digest(t, amd).String() {
		t.Errorf("got annotations of the attestation %v", a)
	}
	inner, err := nested.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if v := inner.Manifests[0].Platform.OSVersion; v != "10.0.20348.2402" {
		t.Errorf("got os.version %q, want 10.0.20348.2402", v)
	}
}

func TestMalformed(t *testing.T) {
	all := images.Malformed()
	if len(all) == 0 {
		t.Fatal("got no malformed manifests")
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		raw := all[name]
		if again := images.Malformed()[name]; again.Digest() != raw.Digest() {
			t.Errorf("%s: two calls return different content", name)
		}
		var v any
		if err := json.Unmarshal(raw.Body, &v); (err != nil) != (name == "index-not-json" || name == "index-html" || name == "manifest-not-json") {
			t.Errorf("%s: unexpected result of parsing as JSON: %v", name, err)
		}
	}
}

func TestParsePlatformRefuses(t *testing.T) {
	for _, s := range []string{"", "linux", "linux/arm/v7/x"} {
		if p, err := images.ParsePlatform(s); err == nil {
			t.Errorf("ParsePlatform(%q): got %v, want an error", s, p)
		}
	}
}
