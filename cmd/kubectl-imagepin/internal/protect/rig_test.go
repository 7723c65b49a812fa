package protect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	digest "github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/registry"
)

// host is a registry that counts requests, and can answer some itself.
type host struct {
	t       *testing.T
	server  *httptest.Server
	content http.Handler

	mu       sync.Mutex
	requests map[string]int
	// answer answers a request itself if it returns true. It is called with the lock.
	answer func(w http.ResponseWriter, method, repository, reference string) bool
}

func newHost(t *testing.T) *host {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	h := &host{t: t, content: ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0))), requests: make(map[string]int)}
	h.server = httptest.NewServer(h)
	t.Cleanup(h.server.Close)
	return h
}

func (h *host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v2/")
	repository, reference, isManifest := strings.Cut(path, "/manifests/")
	what := "ping"
	switch {
	case isManifest && strings.Contains(reference, ":"):
		what = "digest"
	case isManifest:
		what = "tag"
	case path != "":
		what = "other"
	}
	h.mu.Lock()
	h.requests[r.Method+" "+what]++
	answered := isManifest && h.answer != nil && h.answer(w, r.Method, repository, reference)
	h.mu.Unlock()
	if !answered {
		h.content.ServeHTTP(w, r)
	}
}

// answers answers some requests from now on.
func (h *host) answers(answer func(w http.ResponseWriter, method, repository, reference string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = answer
}

// want fails the test unless these were all requests since the last call, for example "HEAD tag 2, GET ping 1".
func (h *host) want(requests string) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	var got []string
	for _, what := range slices.Sorted(maps.Keys(h.requests)) {
		got = append(got, fmt.Sprintf("%s %d", what, h.requests[what]))
	}
	if s := strings.Join(got, ", "); s != requests {
		h.t.Errorf("got requests %q, want %q", s, requests)
	}
	clear(h.requests)
}

func (h *host) name() string { return strings.TrimPrefix(h.server.URL, "http://") }

// do sends a request that does not count.
func (h *host) do(method, path string, out any) int {
	h.t.Helper()
	rec := httptest.NewRecorder()
	h.content.ServeHTTP(rec, httptest.NewRequest(method, "/v2/"+path, nil))
	if out != nil && rec.Code == http.StatusOK {
		if err := json.Unmarshal(rec.Body.Bytes(), out); err != nil {
			h.t.Fatal(err)
		}
	}
	return rec.Code
}

// push pushes an index as repository:tag, and returns its key. The requests do not count.
func (h *host) push(repository, tag string) Key {
	h.t.Helper()
	index, err := random.Index(10, 1, 2)
	if err != nil {
		h.t.Fatal(err)
	}
	ref, err := name.NewTag(h.name() + "/" + repository + ":" + tag)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		h.t.Fatal(err)
	}
	d, err := index.Digest()
	if err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.requests)
	return Key{h.name() + "/" + repository, digest.Digest(d.String())}
}

// has reports whether a repository has a tag or a digest.
func (h *host) has(repository, reference string) bool {
	h.t.Helper()
	return h.do("HEAD", repository+"/manifests/"+reference, nil) == http.StatusOK
}

// tags returns the tags of a repository.
func (h *host) tags(repository string) []string {
	h.t.Helper()
	var list struct{ Tags []string }
	h.do("GET", repository+"/tags/list", &list)
	return list.Tags
}

// memory is a Store.
type memory struct{ text string }

func (m *memory) Read(context.Context) (string, error) { return m.text, nil }

func (m *memory) Update(_ context.Context, change func(string) (string, error)) error {
	text, err := change(m.text)
	if err == nil {
		m.text = text
	}
	return err
}

// rig is a cluster whose pods run digests.
type rig struct {
	*Run
	t      *testing.T
	now    time.Time
	keys   []Key
	store  *memory
	client *registry.Client
	// beforeRead is called before the cluster is read for the nth time since the last run began.
	beforeRead func(n int)
	reads      int
	last       *Report
}

func newRig(t *testing.T, uid string, keys ...Key) *rig {
	r := &rig{t: t, now: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC), keys: keys, store: &memory{}}
	r.Run = &Run{
		Cluster: ClusterOf(uid), Store: r.store, Grace: time.Hour, Selected: func(string) bool { return true },
		Now:        func() time.Time { return r.now },
		Needs:      func(context.Context) (*Needs, error) { return r.needs(), nil },
		Repository: func(name string) (Repository, error) { return r.client.Repository(name) },
	}
	return r
}

func (r *rig) needs() *Needs {
	r.reads++
	if r.beforeRead != nil {
		r.beforeRead(r.reads)
	}
	n := &Needs{}
	for i, k := range r.keys {
		n.AddPod(pod(fmt.Sprintf("p%d", i), k.Repository+":v7", k.Repository+"@"+k.Digest.String()))
	}
	return n
}

// run runs once with a client of its own, as a process does, and returns the statuses by the first digits of digests.
func (r *rig) run(what func(context.Context) (*Report, *Needs, error)) map[string]Status {
	r.t.Helper()
	r.client, r.reads = registry.NewClient(false), 0
	defer r.client.Close()
	report, _, err := what(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	r.last = report
	got := make(map[string]Status)
	for _, i := range report.Items {
		got[i.Tag[strings.LastIndexByte(i.Tag, '-')+1:]] = i.Status
		r.t.Logf("%s %s %s", i.Tag, i.Status, i.Reason)
		if len(i.Reason) > 300 || strings.Contains(i.Reason, "\n") || strings.Contains(i.Reason, "://") {
			r.t.Errorf("%s: reason %q", i.Tag, i.Reason)
		}
	}
	return got
}

// protectOnce runs Protect.
func (r *rig) protectOnce() (*Report, *Needs, error) {
	r.client = registry.NewClient(false)
	defer r.client.Close()
	return r.Protect(r.t.Context())
}

// protects fails the test unless a run of Protect reports statuses, for each key that is given.
func (r *rig) protects(want map[Key]Status) {
	r.t.Helper()
	r.wants(r.run(r.Protect), want)
}

func (r *rig) checks(want map[Key]Status) {
	r.t.Helper()
	r.wants(r.run(r.Check), want)
}

func (r *rig) wants(got map[string]Status, want map[Key]Status) {
	r.t.Helper()
	digits := make(map[string]Status)
	for k, s := range want {
		digits[short(k.Digest)] = s
	}
	if !maps.Equal(got, digits) {
		r.t.Errorf("got %v, want %v", got, digits)
	}
}

// pod returns a pod that runs an imageID.
func pod(name, image, imageID string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: image}}},
		Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "web", ImageID: imageID}}},
	}
}
