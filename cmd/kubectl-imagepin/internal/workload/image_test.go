package workload

import (
	"strings"
	"testing"

	digest "github.com/opencontainers/go-digest"
)

const hex = "0a4d33c8e917b1f0a4d33c8e917b1f0a4d33c8e917b1f0a4d33c8e917b1f0a4d"

// TestParseImage also parses a text of 32 MB, which would take minutes if its length was not checked first.
func TestParseImage(t *testing.T) {
	const d = digest.Digest("sha256:" + hex)
	for _, tc := range []struct {
		image    string
		want     Image
		pinnable bool
	}{
		{"nginx", Image{Repository: "docker.io/library/nginx", Tagged: "docker.io/library/nginx:latest"}, true},
		{"nginx:1.29", Image{Repository: "docker.io/library/nginx", Tagged: "docker.io/library/nginx:1.29"}, true},
		{"index.docker.io/shop/web:v7", Image{Repository: "docker.io/shop/web", Tagged: "docker.io/shop/web:v7"}, true},
		{"localhost:5000/web:v7", Image{Repository: "localhost:5000/web", Tagged: "localhost:5000/web:v7"}, true},
		{"nginx@sha256:" + hex, Image{Repository: "docker.io/library/nginx", Digest: d}, false},
		{"registry.example.com/shop/web:v7@sha256:" + hex,
			Image{Repository: "registry.example.com/shop/web", Tagged: "registry.example.com/shop/web:v7", Digest: d}, false},
	} {
		got, err := ParseImage(tc.image)
		if err != nil || got != tc.want {
			t.Errorf("%s: got %+v, %v, want %+v", tc.image, got, err, tc.want)
		}
		if _, ok := got.Pinnable(); ok != tc.pinnable {
			t.Errorf("%s: pinnable is %v", tc.image, ok)
		}
	}
	for _, image := range []string{"", "Nginx", "nginx:", "nginx@sha256:0a4d", hex, strings.Repeat("a", 10000), "a.example/" + strings.Repeat("a/", 16<<20) + "a"} {
		if got, err := ParseImage(image); err == nil {
			t.Errorf("%.80q: got %+v, want an error", image, got)
		} else if len(err.Error()) > 500 {
			t.Errorf("%.80q: the error has %d characters", image, len(err.Error()))
		}
	}
}

func TestParseImageID(t *testing.T) {
	const d = digest.Digest("sha256:" + hex)
	for id, want := range map[string]ImageID{
		"registry.example.com/shop/web@sha256:" + hex: {d, OfManifest},
		"docker-pullable://shop/web@sha256:" + hex:    {d, OfManifest},
		"sha256:" + hex:                {d, OfConfig},
		"docker://sha256:" + hex:       {d, OfConfig},
		hex:                            {d, OfConfig},
		"shop/web@sha512:" + hex + hex: {"sha512:" + hex + hex, OfManifest},
	} {
		if got, ok := ParseImageID(id); !ok || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", id, got, ok, want)
		}
	}
	for _, id := range []string{"", "nginx", "shop/web:v7", "shop/web@", "shop/web@sha256:0a4d", "sha256:" + strings.ToUpper(hex), "shop/web@" + hex} {
		if got, ok := ParseImageID(id); ok {
			t.Errorf("%q: got %+v, want no digest", id, got)
		}
	}
}
