package resolve

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/log"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"

	"github.com/imagepin/imagepin/internal/ctdtest"
)

const (
	// name is a registry that exists only in hosts.toml.
	name = "registry.example"
	ref  = name + "/team/app:1"
)

// registry serves one image, with the tag 1, in the repository team/app.
type registry struct {
	*httptest.Server
	root  ocispec.Descriptor
	image ctdtest.Image
	blobs ctdtest.Blobs
	// answer, if set, handles a request. It returns false to continue.
	answer func(http.ResponseWriter, *http.Request) bool

	mu          sync.Mutex
	requests    []string // method and path
	headers     []http.Header
	connections int
}

func newRegistry(t *testing.T) *registry {
	t.Helper()
	r := &registry{blobs: ctdtest.Blobs{}}
	r.image = r.blobs.Image("linux/amd64", "app", nil)
	r.root = r.blobs.Index(r.image.Manifest)
	r.Server = httptest.NewUnstartedServer(r)
	r.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			r.mu.Lock()
			r.connections++
			r.mu.Unlock()
		}
	}
	r.Start()
	t.Cleanup(r.Close)
	return r
}

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.requests = append(r.requests, req.Method+" "+req.URL.Path)
	r.headers = append(r.headers, req.Header.Clone())
	r.mu.Unlock()
	if r.answer != nil && r.answer(w, req) {
		return
	}
	_, last, _ := strings.Cut(req.URL.Path, "/team/app/")
	kind, what, _ := strings.Cut(last, "/")
	desc := r.root
	if what != "1" {
		found := false
		for d := range r.blobs {
			if d.String() == what {
				desc = ocispec.Descriptor{MediaType: "application/octet-stream", Digest: d}
				found = true
			}
		}
		if what == r.root.Digest.String() {
			desc = r.root
		}
		if !found {
			http.Error(w, "not found", http.StatusNotFound)
			return
		}
	}
	if kind == "manifests" {
		w.Header().Set("Content-Type", desc.MediaType)
		w.Header().Set("Docker-Content-Digest", desc.Digest.String())
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(r.blobs[desc.Digest])))
	if req.Method != http.MethodHead {
		_, _ = w.Write(r.blobs[desc.Digest])
	}
}

// seen returns the requests since the last call.
func (r *registry) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.requests
	r.requests, r.headers = nil, nil
	return all
}

func (r *registry) tcp() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.connections
}

// status returns a function that answers every request with a status code.
func status(code int) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		if code == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		}
		w.WriteHeader(code)
		return true
	}
}

// writeHosts writes a hosts.toml for the registry [name].
func writeHosts(t *testing.T, root, text string) {
	t.Helper()
	dir := filepath.Join(root, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// server returns a hosts.toml with only the registry itself.
func server(r *registry) string { return fmt.Sprintf("server = %q\n", r.URL) }

// mirrors returns a hosts.toml with servers in order. The last one is the registry.
func mirrors(all ...*registry) string {
	text := server(all[len(all)-1])
	for _, m := range all[:len(all)-1] {
		text += fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", m.URL)
	}
	return text
}

// newResolver returns a resolver with a hosts.toml for the registry [name].
func newResolver(t *testing.T, hostsTOML string) *Resolver {
	t.Helper()
	root := t.TempDir()
	writeHosts(t, root, hostsTOML)
	return withConfig(t, RegistryConfig{ConfigPath: []string{root}})
}

func withConfig(t *testing.T, c RegistryConfig) *Resolver {
	t.Helper()
	p, err := NewProver(make([]byte, nodeKeySize))
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Registry: c, Timeout: time.Minute, Prover: p})
}

func named(t *testing.T, s string) reference.Named {
	t.Helper()
	n, err := reference.ParseDockerRef(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// logged returns a context that logs to memory and a function that returns the log.
func logged(t *testing.T, f logrus.Formatter) (context.Context, func() string) {
	t.Helper()
	var (
		mu sync.Mutex
		b  strings.Builder
	)
	l := logrus.New()
	l.SetLevel(logrus.TraceLevel)
	l.SetFormatter(f)
	l.SetOutput(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return b.Write(p)
	}))
	return log.WithLogger(t.Context(), logrus.NewEntry(l).WithField("a", "field")), func() string {
		mu.Lock()
		defer mu.Unlock()
		return b.String()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func quiet(t *testing.T) context.Context {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return log.WithLogger(t.Context(), logrus.NewEntry(l))
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}
