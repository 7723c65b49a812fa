package kubectl

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/imagepin/imagepin/integration/testkit"
)

// The user of repositories below private/.
const user, password = "alice", "secret"

// registry is a registry that serves HTTP for each host name, because clients use it as their proxy.
type registry struct {
	server *httptest.Server
}

func startRegistry() *registry {
	content := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	return &registry{httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect {
			http.Error(w, "HTTPS is not served", http.StatusBadGateway)
			return
		}
		if r.Host == silentHost {
			<-r.Context().Done()
			return
		}
		if r.Host == hostileHost {
			http.Error(w, `{"errors":[{"code":"DENIED","message":"\u001b[2J`+strings.Repeat("x", 1<<14)+`"}]}`, http.StatusForbidden)
			return
		}
		if u, p, _ := r.BasicAuth(); r.Host == privateHost && (u != user || p != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"log in first"}]}`, http.StatusUnauthorized)
			return
		}
		content.ServeHTTP(w, r)
	}))}
}

const (
	// privateHost is the host name under which the registry requires a user.
	privateHost = "private.example.com"
	// hostileHost is the host name under which the registry answers with long errors that have escape sequences.
	hostileHost = "hostile.example.com"
	// silentHost is the host name under which the registry does not answer.
	silentHost = "silent.example.com"
)

func (r *registry) url() string { return r.server.URL }

func (r *registry) close() { r.server.Close() }

// push pushes a new image for a tag, an index with two platforms, and returns its digest.
func (r *registry) push(t *testing.T, repositoryAndTag string, opts ...random.Option) string {
	t.Helper()
	index, err := random.Index(10, 1, 2, opts...)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(strings.TrimPrefix(r.url(), "http://") + "/" + repositoryAndTag)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, index, remote.WithContext(testkit.Context(t))); err != nil {
		t.Fatal(err)
	}
	d, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}
