package registry

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The requests for two images wait for each other. An image that is there twice is looked up once.
func TestLookupIsConcurrent(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	var heads atomic.Int32
	both := make(chan struct{})
	through := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				if heads.Add(1) == 2 {
					close(both)
				}
				select {
				case <-both:
				case <-r.Context().Done():
				}
			}
			h.ServeHTTP(w, r)
		})
	}
	first, wantFirst := serve(t, through)
	second, wantSecond := serve(t, through)
	got := Resolver{}.Lookup(t.Context(), []string{first, first, second, first}, time.Minute)
	if len(got) != 2 || got[first] != (Result{Digest: wantFirst}) || got[second] != (Result{Digest: wantSecond}) {
		t.Errorf("got %+v, want %s and %s", got, wantFirst, wantSecond)
	}
	if n := heads.Load(); n != 2 {
		t.Errorf("got %d HEAD requests, want one for each image", n)
	}
}

func TestLookupReasons(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	answer := func(code int, body string) string {
		image, _ := serve(t, func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, code) })
		})
		return image
	}
	image, digest := serve(t, func(h http.Handler) http.Handler { return h })
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	want := map[string]string{ // the start of the reason
		image:           "",
		image + "-none": "MANIFEST_UNKNOWN: ",
		strings.TrimPrefix(closed.URL, "http://") + "/shop/web:v7":                             "dial tcp ",
		answer(http.StatusForbidden, "<html>"+strings.Repeat("x", 1<<10)):                      "403 Forbidden",
		answer(http.StatusTeapot, `{"errors":[{"code":"DENIED","message":"a\n\tb"}]}`):         "DENIED: a b",
		answer(http.StatusTeapot, `{"errors":[{"message":"`+strings.Repeat("é", 1<<14)+`"}]}`): "UNKNOWN: é",
		"no tag": "tag must be ",
	}
	var images []string
	for image := range want {
		images = append(images, image)
	}
	for image, r := range (Resolver{}).Lookup(t.Context(), images, time.Minute) {
		if (r.Digest == "") != (r.Reason != "") || !strings.HasPrefix(r.Reason, want[image]) || want[image] == "" && r.Digest != digest {
			t.Errorf("%s: got %+v, want reason %q", image, r, want[image])
		}
		if n := len([]rune(r.Reason)); n > maxReason || strings.Contains(r.Reason, "\n") || strings.Contains(r.Reason, "://") {
			t.Errorf("%s: got %d characters: %q", image, n, r.Reason)
		}
	}
}

func TestLookupTimeout(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	image, _ := serve(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	})
	want := Result{Reason: "no answer within 100ms"}
	if got := (Resolver{}).Lookup(t.Context(), []string{image}, 100*time.Millisecond); got[image] != want {
		t.Errorf("got %+v, want %+v", got[image], want)
	}
}

func TestLookupCanceled(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	image, _ := serve(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			<-r.Context().Done()
		})
	})
	if got := (Resolver{}).Lookup(ctx, []string{image}, time.Hour); got[image].Digest != "" {
		t.Errorf("got %+v", got[image])
	}
}

// A credential helper that does not return ignores the context.
func TestLookupCredentialHelper(t *testing.T) {
	bin := t.TempDir()
	waiting := filepath.Join(bin, "waiting")
	// The helper ends when the directory is removed.
	script := "#!/bin/sh\nwhile [ -e " + waiting + " ]; do sleep 0.1; done\n"
	if err := os.WriteFile(waiting, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "docker-credential-waiting"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "config.json"), []byte(`{"credsStore":"waiting"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", bin)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	image, _ := serve(t, func(h http.Handler) http.Handler { return h })
	want := Result{Reason: "no answer within 100ms"}
	if got := (Resolver{}).Lookup(t.Context(), []string{image}, 100*time.Millisecond); got[image] != want {
		t.Errorf("got %+v, want %+v", got[image], want)
	}
}
