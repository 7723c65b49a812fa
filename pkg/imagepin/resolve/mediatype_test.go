package resolve

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestMediaTypeOfContent checks which media type content has by what it says of itself.
func TestMediaTypeOfContent(t *testing.T) {
	const parts = `"config":{},"layers":[]`
	for body, want := range map[string]string{
		`{"schemaVersion":2,"manifests":[]}`: ocispec.MediaTypeImageIndex,
		`{"schemaVersion":2,` + parts + `}`:  ocispec.MediaTypeImageManifest,
		`{"schemaVersion":2,"mediaType":"` + images.MediaTypeDockerSchema2Manifest + `",` + parts + `}`:      images.MediaTypeDockerSchema2Manifest,
		`{"schemaVersion":2,"mediaType":"` + images.MediaTypeDockerSchema2ManifestList + `","manifests":[]}`: images.MediaTypeDockerSchema2ManifestList,
		`{"schemaVersion":2,"mediaType":"` + images.MediaTypeDockerSchema2ManifestList + `",` + parts + `}`:  "",
		`{"schemaVersion":2,"mediaType":"` + ocispec.MediaTypeImageManifest + `","manifests":[]}`:            "",
		`{"schemaVersion":2,"mediaType":"application/json",` + parts + `}`:                                   "",
		`{"schemaVersion":2,"manifests":[],` + parts + `}`:                                                   "",
		`{"schemaVersion":2,"manifests":[],"layers":[]}`:                                                     "",
		`{"schemaVersion":2,"config":{}}`:                                                                    "",
		`{"schemaVersion":1,"fsLayers":[],"history":[]}`:                                                     "",
		`{"schemaVersion":2,"fsLayers":[],` + parts + `}`:                                                    "",
		`{` + parts + `}`: "",
		`<html>`:          "",
		``:                "",
		`null`:            "",
		`[]`:              "",
	} {
		if got := mediaTypeOf([]byte(body)); got != want {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
}

// TestMediaTypeFromTheManifest resolves a tag at a registry whose answer to HEAD has a media type that is missing or not
// that of an image, as after a redirect to an object store. It costs one request.
func TestMediaTypeFromTheManifest(t *testing.T) {
	for _, contentType := range []string{"", "application/octet-stream", "binary/octet-stream", "text/plain; charset=utf-8", "application/json"} {
		for _, digestHeader := range []bool{true, false} {
			if strings.HasPrefix(contentType, "text/plain") && !digestHeader {
				continue // containerd takes it for a manifest of schema 1
			}
			t.Run(fmt.Sprintf("%s digest=%t", contentType, digestHeader), func(t *testing.T) {
				a := newRegistry(t)
				a.answer = func(w http.ResponseWriter, req *http.Request) bool {
					if !strings.Contains(req.URL.Path, "/manifests/") {
						return false
					}
					body := a.blobs[a.root.Digest]
					w.Header()["Content-Type"] = nil
					if contentType != "" {
						w.Header().Set("Content-Type", contentType)
					}
					if digestHeader {
						w.Header().Set("Docker-Content-Digest", a.root.Digest.String())
					}
					w.Header().Set("Content-Length", fmt.Sprint(len(body)))
					if req.Method != http.MethodHead {
						_, _ = w.Write(body)
					}
					return true
				}
				for _, reference := range []string{ref, byDigest(t, a).String()} {
					a.seen()
					found, err := newResolver(t, server(a)).Resolve(quiet(t), named(t, reference), Credential{})
					if err != nil || found.Root.MediaType != a.root.MediaType || found.Root.Digest != a.root.Digest || found.Root.Size != int64(len(a.blobs[a.root.Digest])) || !found.Proves {
						t.Errorf("%s: got %+v, %v, want %+v", reference, found, err, a.root)
					}
					path := "/v2/team/app/manifests/"
					want := []string{"HEAD " + path + "1", "GET " + path + "1", "GET " + path + a.root.Digest.String()}
					if reference != ref {
						want = []string{"HEAD " + path + a.root.Digest.String(), "GET " + path + a.root.Digest.String()}
					} else if digestHeader {
						want = slices.Delete(want, 1, 2)
					}
					if got := a.seen(); !slices.Equal(got, want) {
						t.Errorf("got requests %q, want %q", got, want)
					}
				}
			})
		}
	}
}

// TestMediaTypeIsNotGuessed resolves tags whose content is not that of the digest, or not an image.
func TestMediaTypeIsNotGuessed(t *testing.T) {
	for name, body := range map[string]string{
		"other content": `{"schemaVersion":2,"manifests":[]}`,
		"login page":    "<html>Sign in</html>",
	} {
		t.Run(name, func(t *testing.T) {
			a := newRegistry(t)
			a.answer = func(w http.ResponseWriter, req *http.Request) bool {
				w.Header().Set("Content-Type", "text/html")
				w.Header().Set("Docker-Content-Digest", a.root.Digest.String())
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
				if req.Method != http.MethodHead {
					_, _ = w.Write([]byte(body))
				}
				return true
			}
			_, err := newResolver(t, server(a)).Resolve(quiet(t), named(t, ref), Credential{})
			var e *imagepin.Error
			if !errors.As(err, &e) || e.Reason != imagepin.ContentCorrupt || e.Class != errdefs.ErrFailedPrecondition {
				t.Errorf("got %v, want reason ContentCorrupt", err)
			}
		})
	}
}
