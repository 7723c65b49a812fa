package ctdtest

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Registry is a registry in which every repository has Blobs, and every tag is Root.
type Registry struct {
	Blobs Blobs
	Root  ocispec.Descriptor
}

// ServeHTTP implements http.Handler.
func (r Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	name := digest.Digest(q.URL.Path[strings.LastIndex(q.URL.Path, "/")+1:])
	if name.Validate() != nil {
		name = r.Root.Digest
	}
	if q.Method == http.MethodHead && name == r.Root.Digest {
		w.Header().Set("Content-Type", r.Root.MediaType)
		w.Header().Set("Docker-Content-Digest", name.String())
		w.Header().Set("Content-Length", fmt.Sprint(r.Root.Size))
		return
	}
	data, ok := r.Blobs[name]
	if !ok {
		http.NotFound(w, q)
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	_, _ = w.Write(data)
}
