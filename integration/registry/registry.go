// Package registry is the registry of the integration tests. It runs go-containerregistry's registry in this process,
// on the loopback interface. Its handler records every request, injects faults and requires credentials.
//
// [Registry.Push] and the similar methods store content without the network, so that [Registry.Requests] returns only
// the requests of the node under test. Any number of registries can run at once, such as an upstream and a mirror.
package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/port"
)

// Registry is a running registry. Its methods are safe for concurrent use.
type Registry struct {
	port  *port.Reservation
	store http.Handler // go-containerregistry's; pushes use it directly
	blobs *blobs

	mu       sync.Mutex
	server   *http.Server // nil while down
	served   chan struct{}
	requests []*Request
	changed  chan struct{} // closed and replaced whenever a request begins or ends
	rule     func(Request) *Fault
	auth     *Auth
	tokens   map[string]grant
	raw      map[string]images.Raw // "repo:tag" or "repo@digest" → manifests that the store would reject
	seq      int
	limited  []func() // close the servers of Limit
}

// New starts a registry on a free port of 127.0.0.1.
func New() (*Registry, error) {
	p, err := port.Reserve()
	if err != nil {
		return nil, err
	}
	b := &blobs{content: map[string]blob{}, repos: map[string]map[string]bool{}}
	r := &Registry{
		store:   registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithBlobHandler(b), registry.WithReferrersSupport(true)),
		blobs:   b,
		changed: make(chan struct{}),
		tokens:  map[string]grant{},
		raw:     map[string]images.Raw{},
		port:    p,
	}
	return r, r.Up()
}

// Host returns the registry's part of a reference, "127.0.0.1:port". [Registry.Down] and [Registry.Up] do not change
// it.
func (r *Registry) Host() string { return r.port.Addr() }

// URL returns the registry's address for a hosts.toml.
func (r *Registry) URL() string { return "http://" + r.Host() }

// Ref returns the full reference of "repo:tag" or "repo@digest".
func (r *Registry) Ref(s string) string { return r.Host() + "/" + s }

// Up starts the server again after [Registry.Down].
func (r *Registry) Up() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.server != nil {
		return nil
	}
	l, err := net.Listen("tcp", r.Host())
	if err != nil {
		return fmt.Errorf("starting the registry: %w", err)
	}
	srv := &http.Server{Handler: r, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	r.server, r.served = srv, served
	go func() {
		defer close(served)
		_ = srv.Serve(l) // returns when the server is closed
	}()
	return nil
}

// Down stops the server and closes all connections, as in a crash of the machine. Content stays.
func (r *Registry) Down() {
	r.mu.Lock()
	srv, served := r.server, r.served
	r.server = nil
	r.mu.Unlock()
	if srv == nil {
		return
	}
	_ = srv.Close()
	<-served
}

// Close stops the registry and waits until all requests are done.
func (r *Registry) Close() {
	r.Down()
	r.mu.Lock()
	limited := r.limited
	r.limited = nil
	r.mu.Unlock()
	for _, stop := range limited {
		stop()
	}
	r.port.Close()
	for {
		r.mu.Lock()
		busy := slices.ContainsFunc(r.requests, func(q *Request) bool { return !q.Done })
		changed := r.changed
		r.mu.Unlock()
		if !busy {
			return
		}
		<-changed // the connections are closed, so every handler returns
	}
}

// Push stores an image or index and all its content as "repo:tag", or as "repo" by digest only. It moves a tag that
// exists. It returns the digest.
func (r *Registry) Push(ref string, content remote.Taggable) (v1.Hash, error) {
	repo, _, tagged := cutRef(ref)
	body, err := content.RawManifest()
	if err != nil {
		return v1.Hash{}, err
	}
	digest, _, err := v1.SHA256(bytes.NewReader(body))
	if err != nil {
		return v1.Hash{}, err
	}
	full := r.Host() + "/" + ref
	if !tagged {
		full = r.Host() + "/" + repo + "@" + digest.String()
	}
	target, err := name.ParseReference(full, name.Insecure)
	if err != nil {
		return v1.Hash{}, err
	}
	opts := []remote.Option{remote.WithTransport(direct{r.store}), remote.WithJobs(1)}
	switch c := content.(type) {
	case v1.ImageIndex:
		err = remote.WriteIndex(target, c, opts...)
	case v1.Image:
		err = remote.Write(target, c, opts...)
	default:
		err = fmt.Errorf("cannot push a %T", content)
	}
	if err != nil {
		return v1.Hash{}, fmt.Errorf("pushing %s: %w", ref, err)
	}
	r.mu.Lock()
	delete(r.raw, ref)
	r.mu.Unlock()
	return digest, nil
}

// PushRaw stores a manifest without validation, as "repo:tag" or "repo", and by its digest. It returns the digest.
func (r *Registry) PushRaw(ref string, m images.Raw) v1.Hash {
	r.mu.Lock()
	defer r.mu.Unlock()
	repo, _, tagged := cutRef(ref)
	d := m.Digest()
	r.raw[repo+"@"+d.String()] = m
	if tagged {
		r.raw[ref] = m
	}
	return d
}

// PushBlob stores a blob in a repository.
func (r *Registry) PushBlob(repo string, b []byte) v1.Hash {
	h, _, _ := v1.SHA256(bytes.NewReader(b)) // reading memory does not fail
	r.blobs.put(repo, h, blob{b})
	return h
}

// Tag sets a tag "repo:tag" to a manifest in the repository.
func (r *Registry) Tag(ref string, digest v1.Hash) error {
	repo, tag, ok := cutRef(ref)
	if !ok {
		return fmt.Errorf("%q has no tag", ref)
	}
	m, err := r.manifest(repo, digest.String())
	if err != nil {
		return err
	}
	req := httptest.NewRequest(http.MethodPut, "/v2/"+repo+"/manifests/"+tag, bytes.NewReader(m.Body))
	req.Header.Set("Content-Type", m.MediaType)
	rec := httptest.NewRecorder()
	r.store.ServeHTTP(rec, req)
	if rec.Code != http.StatusCreated {
		return fmt.Errorf("tagging %s: %d %s", ref, rec.Code, rec.Body)
	}
	r.mu.Lock()
	delete(r.raw, ref)
	r.mu.Unlock()
	return nil
}

// Delete removes a manifest: "repo:tag" removes only the tag, "repo@digest" removes the manifest and all its tags.
// Blobs stay.
func (r *Registry) Delete(ref string) error {
	if repo, tag, ok := cutRef(ref); ok {
		return r.deleteOne(repo, tag)
	}
	repo, digest, ok := strings.Cut(ref, "@")
	if !ok {
		return fmt.Errorf("%q has neither tag nor digest", ref)
	}
	req := httptest.NewRequest(http.MethodGet, "/v2/"+repo+"/tags/list", nil)
	rec := httptest.NewRecorder()
	r.store.ServeHTTP(rec, req)
	var list struct{ Tags []string }
	if rec.Code == http.StatusOK {
		if err := json.Unmarshal(rec.Body.Bytes(), &list); err != nil {
			return err
		}
	}
	for _, tag := range list.Tags {
		if m, err := r.manifest(repo, tag); err == nil && m.Digest().String() == digest {
			if err := r.deleteOne(repo, tag); err != nil {
				return err
			}
		}
	}
	return r.deleteOne(repo, digest)
}

// DeleteBlob removes a blob from a repository.
func (r *Registry) DeleteBlob(repo string, digest v1.Hash) { r.blobs.remove(repo, digest) }

func (r *Registry) deleteOne(repo, target string) error {
	r.mu.Lock()
	delete(r.raw, repo+":"+target)
	delete(r.raw, repo+"@"+target)
	r.mu.Unlock()
	rec := httptest.NewRecorder()
	r.store.ServeHTTP(rec, httptest.NewRequest(http.MethodDelete, "/v2/"+repo+"/manifests/"+target, nil))
	if rec.Code != http.StatusAccepted && rec.Code != http.StatusNotFound {
		return fmt.Errorf("deleting %s %s: %d %s", repo, target, rec.Code, rec.Body)
	}
	return nil
}

// manifest returns the manifest of a tag or digest in the store.
func (r *Registry) manifest(repo, target string) (images.Raw, error) {
	rec := httptest.NewRecorder()
	r.store.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/v2/"+repo+"/manifests/"+target, nil))
	if rec.Code != http.StatusOK {
		return images.Raw{}, fmt.Errorf("reading %s %s: %d", repo, target, rec.Code)
	}
	return images.Raw{MediaType: rec.Header().Get("Content-Type"), Body: rec.Body.Bytes()}, nil
}

// cutRef cuts "repo:tag". ok is false if there is no tag.
func cutRef(ref string) (repo, tag string, ok bool) {
	if repo, _, digested := strings.Cut(ref, "@"); digested {
		return repo, "", false
	}
	return strings.Cut(ref, ":")
}

// direct is a transport that forwards requests to the store without a network.
type direct struct{ store http.Handler }

func (d direct) RoundTrip(req *http.Request) (*http.Response, error) {
	in := req.Clone(req.Context())
	in.RequestURI = req.URL.RequestURI()
	// A server's requests have no host in the URL. The store uses the host in Location headers and blob paths.
	in.URL.Scheme, in.URL.Host = "", ""
	if in.Body == nil {
		in.Body = http.NoBody
	}
	rec := httptest.NewRecorder()
	d.store.ServeHTTP(rec, in)
	res := rec.Result()
	res.Request = req
	return res, nil
}

// blobs stores blobs by repository, as a real registry does: the blob of one repository is absent in another.
type blobs struct {
	mu      sync.RWMutex
	content map[string]blob
	repos   map[string]map[string]bool // repository → digests
}

// repoOf removes what the store's handler leaves of the path of an upload, both through [direct] and over the network.
func repoOf(repo string) string {
	return strings.TrimSuffix(strings.TrimSuffix(strings.Trim(repo, "/"), "/blobs"), "/blobs/uploads")
}

func (b *blobs) get(repo string, h v1.Hash) (blob, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if !b.repos[repoOf(repo)][h.String()] {
		return nil, false
	}
	c, ok := b.content[h.String()]
	return c, ok
}

func (b *blobs) put(repo string, h v1.Hash, c blob) {
	b.mu.Lock()
	defer b.mu.Unlock()
	repo = repoOf(repo)
	if b.repos[repo] == nil {
		b.repos[repo] = map[string]bool{}
	}
	b.repos[repo][h.String()] = true
	b.content[h.String()] = c
}

func (b *blobs) remove(repo string, h v1.Hash) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.repos[repoOf(repo)], h.String())
}

func (b *blobs) Stat(_ context.Context, repo string, h v1.Hash) (int64, error) {
	c, ok := b.get(repo, h)
	if !ok {
		return 0, registry.ErrNotFound
	}
	return c.size(), nil
}

func (b *blobs) Put(_ context.Context, repo string, h v1.Hash, rc io.ReadCloser) error {
	defer rc.Close()
	c, err := io.ReadAll(rc)
	if err != nil {
		return err
	}
	b.put(repo, h, blob{c})
	return nil
}

// Content returns the repositories that have blobs, for failure messages.
func (r *Registry) Content() []string {
	r.blobs.mu.RLock()
	defer r.blobs.mu.RUnlock()
	return slices.Sorted(maps.Keys(r.blobs.repos))
}
