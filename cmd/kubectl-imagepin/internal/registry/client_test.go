package registry

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	digest "github.com/opencontainers/go-digest"
)

const password = "a-secret-password"

// bearer is a registry that requires tokens, and gives a user those that it asks for, without what it may not do.
type bearer struct {
	server *httptest.Server
	mayNot string

	mu     sync.Mutex
	scopes []string
}

func newBearer(t *testing.T, mayNot string) (*bearer, digest.Digest) {
	t.Helper()
	b := &bearer{mayNot: mayNot}
	content := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	plain := httptest.NewServer(content)
	t.Cleanup(plain.Close)
	b.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			b.token(w, r)
			return
		}
		needed := map[string]string{"GET": "pull", "HEAD": "pull", "DELETE": "delete"}[r.Method]
		if needed == "" {
			needed = "push"
		}
		if granted, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); !ok || !slices.Contains(strings.Split(granted, ","), needed) {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="test"`, b.server.URL))
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"a token is required"}]}`, http.StatusUnauthorized)
			return
		}
		content.ServeHTTP(w, r)
	}))
	t.Cleanup(b.server.Close)
	image, err := random.Image(10, 1)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(strings.TrimPrefix(plain.URL, "http://") + "/shop/web:v7")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, image); err != nil {
		t.Fatal(err)
	}
	h, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{"auths": map[string]any{
		b.host(): map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte("alice:" + password))},
	}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	return b, digest.Digest(h.String())
}

func (b *bearer) host() string { return strings.TrimPrefix(b.server.URL, "http://") }

func (b *bearer) token(w http.ResponseWriter, r *http.Request) {
	if u, p, _ := r.BasicAuth(); u != "alice" || p != password {
		http.Error(w, "wrong password", http.StatusUnauthorized)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	scope := r.URL.Query().Get("scope")
	b.scopes = append(b.scopes, scope)
	granted := []string{"none"}
	for action := range strings.SplitSeq(scope[strings.LastIndexByte(scope, ':')+1:], ",") {
		if action != b.mayNot {
			granted = append(granted, action)
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]string{"token": strings.Join(granted, ",")})
}

// A client asks for the permission to push or to delete only when it does so.
func TestScopes(t *testing.T) {
	b, d := newBearer(t, "")
	client := NewClient(false)
	defer client.Close()
	repo, err := client.Repository(b.host() + "/shop/web")
	if err != nil {
		t.Fatal(err)
	}
	want := func(scopes ...string) {
		t.Helper()
		b.mu.Lock()
		defer b.mu.Unlock()
		if !slices.Equal(b.scopes, scopes) {
			t.Errorf("got scopes %q, want %q", b.scopes, scopes)
		}
	}
	const repository = "repository:shop/web:"
	for range 2 {
		if got, err := repo.Resolve(t.Context(), "v7"); err != nil || got != d {
			t.Fatalf("got %s, %v, want %s", got, err, d)
		}
	}
	want(repository + "pull")
	if err := repo.Tag(t.Context(), "other", d); err != nil {
		t.Fatal(err)
	}
	want(repository+"pull", repository+"push,pull")
	if err := repo.Untag(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	want(repository+"pull", repository+"push,pull", repository+"push,pull,delete")
	if _, err := repo.Resolve(t.Context(), "other"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want that the tag is gone", err)
	}
	if err := repo.CanUntag(t.Context(), "probe"); err != nil {
		t.Error(err)
	}
}

// Errors name neither the password nor the request.
func TestErrorsOfClient(t *testing.T) {
	for _, mayNot := range []string{"pull", "push", "delete"} {
		b, d := newBearer(t, mayNot)
		client := NewClient(false)
		defer client.Close()
		repo, err := client.Repository(b.host() + "/shop/web")
		if err != nil {
			t.Fatal(err)
		}
		_, err = repo.Resolve(t.Context(), "v7")
		if mayNot != "pull" {
			err = repo.Tag(t.Context(), "other", d)
		}
		if mayNot == "delete" {
			err = repo.Untag(t.Context(), "other")
		}
		if !errors.Is(err, ErrRefused) || strings.Contains(err.Error(), password) || strings.Contains(err.Error(), "/v2/") {
			t.Errorf("without %s: got %v, want that it is refused", mayNot, err)
		}
	}
	// An answer without a token can have another secret.
	if err := failure(fmt.Errorf("got no token in bearer response:\n%s", password)); strings.Contains(err.Error(), password) {
		t.Errorf("got %v", err)
	}
	client := NewClient(false)
	defer client.Close()
	for _, repository := range []string{"", "x y", strings.Repeat("x", 300), "Shop/Web"} {
		if _, err := client.Repository(repository); err == nil || len(err.Error()) > 500 {
			t.Errorf("%.20s: got %v, want an error", repository, err)
		}
	}
}
