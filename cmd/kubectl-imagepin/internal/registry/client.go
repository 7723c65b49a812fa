package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	digest "github.com/opencontainers/go-digest"
)

const (
	// maxManifest is the size of the largest manifest that is read, as in containerd.
	maxManifest = 8 << 20
	// maxBody is how much is read of a response that is not a manifest.
	maxBody = 64 << 10
	// requestTimeout is how long a registry has for each answer.
	requestTimeout = 15 * time.Second
)

// ErrNotFound is the error for a tag or a digest that a registry does not have. A registry can also respond so to a user without
// access.
var ErrNotFound = errors.New("not found")

// ErrRefused is the error of a request that a registry refuses: the user has no access, or the registry does not support it.
var ErrRefused = errors.New("refused")

// answer is the error of a request that a registry has answered. Its text is one line, with neither the request nor a credential.
type answer struct {
	kind error // ErrNotFound, ErrRefused, or nil
	text string
}

func (a *answer) Error() string        { return a.text }
func (a *answer) Is(target error) bool { return a.kind != nil && target == a.kind }

// Client reads and writes the tags of repositories, with the credentials of the user's Docker configuration. Its methods are safe
// for concurrent use.
type Client struct {
	insecure bool
	inner    *http.Transport

	mu    sync.Mutex
	hosts map[string]*limited
}

// NewClient returns a client. insecure is whether to use HTTP for a registry that does not serve HTTPS.
func NewClient(insecure bool) *Client {
	return &Client{insecure: insecure, inner: newTransport(requestTimeout), hosts: make(map[string]*limited)}
}

// Close closes the connections of the client.
func (c *Client) Close() { c.inner.CloseIdleConnections() }

// Repository returns a repository, for example registry.example.com/shop/web.
func (c *Client) Repository(repository string) (*Repository, error) {
	opts := []name.Option{name.StrictValidation}
	if c.insecure {
		opts = append(opts, name.Insecure)
	}
	repo, err := name.NewRepository(repository, opts...)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	host := repo.RegistryStr()
	if c.hosts[host] == nil {
		c.hosts[host] = newLimited(c.inner)
	}
	return &Repository{name: repo, host: c.hosts[host], clients: make(map[string]*http.Client)}, nil
}

// Repository is a repository of a registry.
type Repository struct {
	name name.Repository
	host *limited

	mu      sync.Mutex
	clients map[string]*http.Client // by the scope that they have asked for
}

// Registry returns the host name of the registry.
func (r *Repository) Registry() string { return r.name.RegistryStr() }

// client returns an HTTP client that is authenticated for a scope.
func (r *Repository) client(ctx context.Context, scope string) (*http.Client, error) {
	r.mu.Lock()
	known := r.clients[scope]
	r.mu.Unlock()
	if known != nil {
		return known, nil
	}
	auth, err := resolve(ctx, r.name)
	if err != nil {
		return nil, err
	}
	base := transport.NewUserAgent(r.host, "kubectl-imagepin")
	t, err := transport.NewWithContext(ctx, r.name.Registry, auth, base, []string{r.name.Scope(scope)})
	if err != nil {
		return nil, failure(err)
	}
	client := &http.Client{Transport: t}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients[scope] = client
	return client, nil
}

// resolve returns the credential for a repository. A credential helper of Docker ignores the context, so it can outlive the call.
func resolve(ctx context.Context, repo name.Repository) (authn.Authenticator, error) {
	type result struct {
		auth authn.Authenticator
		err  error
	}
	resolved := make(chan result, 1)
	go func() {
		auth, err := authn.DefaultKeychain.Resolve(repo)
		resolved <- result{auth, err}
	}()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	select {
	case r := <-resolved:
		if r.err != nil {
			return nil, errors.New("no credential: " + reason(r.err))
		}
		return r.auth, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("no credential: %w", ctx.Err())
	}
}

// do sends a request for the repository, and returns the response if its status is one of ok.
func (r *Repository) do(ctx context.Context, scope, method, path string, header http.Header, body []byte, ok ...int) (*http.Response, error) {
	client, err := r.client(ctx, scope)
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: r.name.Scheme(), Host: r.name.RegistryStr(), Path: "/v2/" + r.name.RepositoryStr() + path}
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), content)
	if err != nil {
		return nil, err
	}
	for k, vs := range header {
		req.Header[k] = vs
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, failure(err)
	}
	if err := transport.CheckError(limitBody(resp), ok...); err != nil {
		_ = resp.Body.Close()
		return nil, failure(err)
	}
	return resp, nil
}

// limitBody limits how much is read of the body of an error.
func limitBody(resp *http.Response) *http.Response {
	limited := *resp
	limited.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxBody), resp.Body}
	return &limited
}

// failure returns the error of a request: an answer, or why there is none.
func failure(err error) error {
	reported := (*transport.Error)(nil)
	if !errors.As(err, &reported) {
		return errors.New(reason(err))
	}
	a := &answer{text: reason(err)}
	switch code := reported.StatusCode; {
	case code == http.StatusNotFound:
		a.kind = ErrNotFound
	case code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests:
		a.kind = ErrRefused
	}
	return a
}

// accept has the types of manifests. An artifact of another type that an image volume needs has a digest too.
var accept = http.Header{"Accept": {strings.Join([]string{
	string(types.OCIImageIndex), string(types.DockerManifestList), string(types.OCIManifestSchema1), string(types.DockerManifestSchema2), "*/*",
}, ", ")}}

// Resolve returns the digest of a tag, or of a digest if the registry has it. It sends a HEAD request, and a GET request if the
// response has no digest. It fails with [ErrNotFound] or [ErrRefused], or if the registry does not answer.
func (r *Repository) Resolve(ctx context.Context, reference string) (digest.Digest, error) {
	resp, err := r.do(ctx, transport.PullScope, http.MethodHead, "/manifests/"+reference, accept, nil, http.StatusOK)
	if err != nil {
		return "", err
	}
	_ = resp.Body.Close()
	if d, err := digest.Parse(resp.Header.Get("Docker-Content-Digest")); err == nil {
		return d, nil
	}
	m, err := r.manifest(ctx, reference)
	if err != nil {
		return "", err
	}
	return digest.FromBytes(m.body), nil
}

// manifest is the content of a manifest.
type manifest struct {
	mediaType string
	body      []byte
}

func (r *Repository) manifest(ctx context.Context, reference string) (*manifest, error) {
	resp, err := r.do(ctx, transport.PullScope, http.MethodGet, "/manifests/"+reference, accept, nil, http.StatusOK)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	if err != nil {
		return nil, failure(err)
	}
	if len(body) > maxManifest {
		return nil, fmt.Errorf("the manifest has more than %d bytes", maxManifest)
	}
	return &manifest{resp.Header.Get("Content-Type"), body}, nil
}

// Tag sets a tag to the manifest with a digest: it reads the manifest, and writes the same bytes under the tag.
func (r *Repository) Tag(ctx context.Context, tag string, d digest.Digest) error {
	m, err := r.manifest(ctx, d.String())
	if err != nil {
		return err
	}
	if got := d.Algorithm().FromBytes(m.body); got != d {
		return fmt.Errorf("the registry returns the content of %s", got)
	}
	return r.put(ctx, tag, m)
}

func (r *Repository) put(ctx context.Context, tag string, m *manifest) error {
	header := http.Header{"Content-Type": {m.mediaType}}
	resp, err := r.do(ctx, transport.PushScope, http.MethodPut, "/manifests/"+tag, header, m.body,
		http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent)
	if err == nil {
		_ = resp.Body.Close()
		return nil
	}
	if errors.Is(err, ErrNotFound) {
		// The manifest was there: some registries answer so to a user who must not push.
		return &answer{kind: ErrRefused, text: err.Error()}
	}
	return err
}

// Untag deletes a tag by its name. It fails with [ErrNotFound] if there is no such tag.
func (r *Repository) Untag(ctx context.Context, tag string) error {
	resp, err := r.do(ctx, transport.DeleteScope, http.MethodDelete, "/manifests/"+tag, nil, nil,
		http.StatusOK, http.StatusAccepted, http.StatusNoContent)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
