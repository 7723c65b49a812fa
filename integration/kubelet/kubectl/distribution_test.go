package kubectl

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/imagepin/imagepin/integration/daemon"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/port"
	"github.com/imagepin/imagepin/integration/testkit"
)

// distribution is the registry of the CNCF project Distribution, behind a proxy that counts requests.
type distribution struct {
	t      *testing.T
	addr   string
	config string
	log    string
	daemon *daemon.Daemon
	proxy  *httptest.Server

	mu       sync.Mutex
	requests map[string]int
}

func startDistribution(t *testing.T) *distribution {
	t.Helper()
	p, err := port.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	dir := t.TempDir()
	d := &distribution{t: t, addr: p.Addr(), config: filepath.Join(dir, "config.yml"), log: filepath.Join(dir, "log"), requests: make(map[string]int)}
	config := fmt.Sprintf(`version: 0.1
log: {level: warn}
storage: {filesystem: {rootdirectory: %q}, delete: {enabled: true}}
http: {addr: %q, relativeurls: true}
`, filepath.Join(dir, "data"), d.addr)
	if err := os.WriteFile(d.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	t.Cleanup(d.stop)
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: d.addr})
	d.proxy = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.count(r)
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(d.proxy.Close)
	return d
}

func (d *distribution) start() {
	d.t.Helper()
	var err error
	if d.daemon, err = daemon.Start(exec.Command(cluster.Bin("registry"), "serve", d.config), d.log); err != nil {
		d.t.Fatal(err)
	}
	ready := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.addr+"/v2/", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	if err := d.daemon.Await(testkit.Context(d.t), ready); err != nil {
		d.t.Fatal(err)
	}
}

func (d *distribution) stop() {
	if err := d.daemon.Kill9(); err != nil {
		d.t.Error(err)
	}
}

// collectGarbage deletes manifests without a tag, and what only they need, as operators of the registry do.
func (d *distribution) collectGarbage() {
	d.t.Helper()
	d.stop()
	out, err := exec.Command(cluster.Bin("registry"), "garbage-collect", "--delete-untagged", d.config).CombinedOutput()
	if err != nil {
		d.t.Fatalf("%v: %s", err, out)
	}
	d.start()
}

func (d *distribution) count(r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, reference, isManifest := strings.Cut(r.URL.Path, "/manifests/")
	what := r.Method
	switch {
	case isManifest && strings.Contains(reference, ":"):
		what += " digest"
	case isManifest:
		what += " tag"
	case r.URL.Path == "/v2/":
		what += " /v2/"
	default:
		what += " other"
	}
	d.requests[what]++
}

// want fails the test unless these were all requests since the last call, for example "GET /v2/ 1, HEAD tag 2".
func (d *distribution) want(requests string) {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	var got []string
	for _, what := range slices.Sorted(maps.Keys(d.requests)) {
		got = append(got, fmt.Sprintf("%s %d", what, d.requests[what]))
	}
	if s := strings.Join(got, ", "); s != requests {
		d.t.Errorf("got requests %q, want %q", s, requests)
	}
	clear(d.requests)
}

// host is the name of the registry in references.
func (d *distribution) host() string { return strings.TrimPrefix(d.proxy.URL, "http://") }

// push pushes a new index with two platforms for a tag of a repository, and returns its digest. The requests do not count.
func (d *distribution) push(repositoryAndTag string) string {
	d.t.Helper()
	index, err := random.Index(100, 1, 2)
	if err != nil {
		d.t.Fatal(err)
	}
	tag, err := name.NewTag(d.addr + "/" + repositoryAndTag)
	if err != nil {
		d.t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, index, remote.WithContext(testkit.Context(d.t))); err != nil {
		d.t.Fatal(err)
	}
	h, err := index.Digest()
	if err != nil {
		d.t.Fatal(err)
	}
	return h.String()
}

// pull pulls all content of a digest of a repository, for all platforms.
func (d *distribution) pull(repository, digest string) error {
	d.t.Helper()
	ref, err := name.NewDigest(d.addr + "/" + repository + "@" + digest)
	if err != nil {
		d.t.Fatal(err)
	}
	index, err := remote.Index(ref, remote.WithContext(testkit.Context(d.t)))
	if err != nil {
		return err
	}
	return validate.Index(index)
}

// tags returns the tags of a repository, sorted.
func (d *distribution) tags(repository string) []string {
	d.t.Helper()
	repo, err := name.NewRepository(d.addr + "/" + repository)
	if err != nil {
		d.t.Fatal(err)
	}
	tags, err := remote.List(repo, remote.WithContext(testkit.Context(d.t)))
	if err != nil {
		d.t.Fatal(err)
	}
	slices.Sort(tags)
	return tags
}
