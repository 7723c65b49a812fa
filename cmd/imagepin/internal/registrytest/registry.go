// Package registrytest runs a registry for tests of the command. It records the requests, and can answer them itself.
package registrytest

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
)

// Registry serves the content of Blobs in each repository, and manifests by tag.
type Registry struct {
	*httptest.Server
	Blobs ctdtest.Blobs
	// Answer, if set, handles a request. It returns false to continue.
	Answer func(http.ResponseWriter, *http.Request) bool

	mu       sync.Mutex
	tags     map[string]ocispec.Descriptor // by repository:tag
	types    map[digest.Digest]string
	requests []string
	now, max int
}

// New starts a registry on the loopback interface.
func New(t testing.TB) *Registry {
	t.Helper()
	r := &Registry{Blobs: ctdtest.Blobs{}, tags: make(map[string]ocispec.Descriptor), types: make(map[digest.Digest]string)}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

// Host is the registry's host and port.
func (r *Registry) Host() string { return r.Listener.Addr().String() }

// Push tags an index or a manifest of r.Blobs, and returns its reference.
func (r *Registry) Push(tag string, desc ocispec.Descriptor) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tags[tag] = desc
	r.types[desc.Digest] = desc.MediaType
	return r.Host() + "/" + tag
}

// Image pushes an index with one image for each platform, and returns its descriptor. Equal texts and platforms result in
// equal images.
func (r *Registry) Image(tag, text string, platforms ...string) ocispec.Descriptor {
	var manifests []ocispec.Descriptor
	for _, p := range platforms {
		manifests = append(manifests, r.Manifest(text, p))
	}
	r.mu.Lock()
	index := r.Blobs.Index(manifests...)
	r.mu.Unlock()
	r.Push(tag, index)
	return index
}

// Manifest adds an image of one platform, and returns the descriptor of its manifest, with the platform.
func (r *Registry) Manifest(text, platform string) ocispec.Descriptor {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.Blobs.Image(platform, text, nil).Manifest
	r.types[m.Digest] = m.MediaType
	return m
}

// Delete removes a tag.
func (r *Registry) Delete(tag string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.tags, tag)
}

// Requests returns the requests since the last call: method and path.
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.requests
	r.requests = nil
	return all
}

// MaxConcurrent returns the maximum number of requests at one time.
func (r *Registry) MaxConcurrent() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.max
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.requests = append(r.requests, req.Method+" "+req.URL.Path)
	r.now++
	r.max = max(r.max, r.now)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.now--
		r.mu.Unlock()
	}()
	if r.Answer != nil && r.Answer(w, req) {
		return
	}
	desc, data, ok := r.find(strings.TrimPrefix(req.URL.Path, "/v2/"))
	if !ok {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", desc.MediaType)
	w.Header().Set("Docker-Content-Digest", desc.Digest.String())
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(data))
}

func (r *Registry) find(path string) (ocispec.Descriptor, []byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, kind := range []string{"/manifests/", "/blobs/"} {
		repo, target, ok := strings.Cut(path, kind)
		if !ok {
			continue
		}
		desc, tagged := r.tags[repo+":"+target]
		if !tagged {
			desc = ocispec.Descriptor{Digest: digest.Digest(target), MediaType: "application/octet-stream"}
			if t := r.types[desc.Digest]; t != "" && kind == "/manifests/" {
				desc.MediaType = t
			}
		}
		data, ok := r.Blobs[desc.Digest]
		return desc, data, ok
	}
	return ocispec.Descriptor{}, nil, false
}
