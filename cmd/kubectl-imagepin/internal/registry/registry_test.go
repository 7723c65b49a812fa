package registry

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// serve serves a registry, through a function that can change responses. It returns an image in it, an index, and its
// digest.
func serve(t *testing.T, through func(http.Handler) http.Handler) (image, digest string) {
	t.Helper()
	content := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	plain, changed := httptest.NewServer(content), httptest.NewServer(through(content))
	t.Cleanup(plain.Close)
	t.Cleanup(changed.Close)
	index, err := random.Index(10, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(strings.TrimPrefix(plain.URL, "http://") + "/shop/web:v7")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, index); err != nil {
		t.Fatal(err)
	}
	d, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(changed.URL, "http://") + "/shop/web:v7", d.String()
}

func TestDigest(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	var gets atomic.Int32
	for _, tc := range []struct {
		name    string
		through func(http.Handler) http.Handler
		gets    int32 // of manifests
	}{
		{"HEAD", func(h http.Handler) http.Handler { return h }, 0},
		{"without a digest in the header", func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h.ServeHTTP(&withoutDigest{w}, r)
			})
		}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			gets.Store(0)
			image, want := serve(t, func(h http.Handler) http.Handler {
				changed := tc.through(h)
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/") {
						gets.Add(1)
					}
					changed.ServeHTTP(w, r)
				})
			})
			got, err := Resolver{}.Digest(t.Context(), image)
			if err != nil || got != want || gets.Load() != tc.gets {
				t.Errorf("got %s, %v with %d GET requests, want the index %s with %d", got, err, gets.Load(), want, tc.gets)
			}
		})
	}
}

// withoutDigest removes the digest of a response.
type withoutDigest struct{ http.ResponseWriter }

func (w *withoutDigest) WriteHeader(code int) {
	w.Header().Del("Docker-Content-Digest")
	w.ResponseWriter.WriteHeader(code)
}

func TestDigestErrors(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	image, _ := serve(t, func(h http.Handler) http.Handler { return h })
	hostile, _ := serve(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, strings.Repeat("x", 1<<20), http.StatusForbidden)
		})
	})
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for _, image := range []string{image + "-none", hostile, strings.TrimPrefix(closed.URL, "http://") + "/shop/web:v7", "no tag"} {
		got, err := Resolver{}.Digest(t.Context(), image)
		if err == nil {
			t.Fatalf("%s: got %s, want an error", image, got)
		}
		if !strings.HasPrefix(err.Error(), "cannot resolve "+image+": ") || len(err.Error()) > len(image)+600 {
			t.Errorf("%s: got error %.900q of %d characters", image, err, len(err.Error()))
		}
	}
}

// TestAnswerWithoutToken does not print what a token service answers instead of a token.
func TestAnswerWithoutToken(t *testing.T) {
	image, _ := serve(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/token" {
				io.WriteString(w, `{"refresh_token":"`+password+`"}`)
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="test"`)
			w.WriteHeader(http.StatusUnauthorized)
		})
	})
	_, err := Resolver{}.Digest(t.Context(), image)
	if err == nil || strings.Contains(err.Error(), password) || !strings.Contains(err.Error(), errNoToken.Error()) {
		t.Errorf("got %v, want %v", err, errNoToken)
	}
	for _, got := range (Resolver{}).Lookup(t.Context(), []string{image}, time.Minute) {
		if got.Reason != errNoToken.Error() {
			t.Errorf("got the reason %q", got.Reason)
		}
	}
}
