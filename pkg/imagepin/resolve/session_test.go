package resolve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

func TestResolveAndFetch(t *testing.T) {
	a := newRegistry(t)
	root := t.TempDir()
	writeHosts(t, root, server(a))
	r := withConfig(t, RegistryConfig{ConfigPath: []string{root}, Headers: http.Header{"X-Node": {"n1"}}})
	got := resolveOnce(t, r)
	if got.Root.Digest != a.root.Digest || got.Root.MediaType != a.root.MediaType || got.Root.Size != a.root.Size || got.Host != hostOf(a) {
		t.Errorf("got %+v, want root %+v from %s", got, a.root, hostOf(a))
	}
	if h := a.headers[0].Get("X-Node"); h != "n1" {
		t.Errorf("got header X-Node %q, want n1", h)
	}
	f, err := got.Session.Fetcher(quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	rc, err := f.Fetch(quiet(t), a.image.Layer)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(rc)
	if err != nil || digest.FromBytes(b) != a.image.Layer.Digest {
		t.Errorf("fetched %d bytes, %v", len(b), err)
	}
	if err := rc.Close(); err != nil {
		t.Error(err)
	}
	want := []string{"HEAD /v2/team/app/manifests/1", "GET /v2/team/app/blobs/" + a.image.Layer.Digest.String()}
	if seen := a.seen(); !slices.Equal(seen, want) {
		t.Errorf("got requests %v, want %v", seen, want)
	}
	if got.Session.traffic.bytes.Load() < int64(len(b)) {
		t.Errorf("session has %d bytes, want at least %d", got.Session.traffic.bytes.Load(), len(b))
	}
	if n := got.Session.traffic.active.Load(); n != 0 {
		t.Errorf("got %d open requests after the end, want 0", n)
	}
}

func TestConnectionsAreReused(t *testing.T) {
	a := newRegistry(t)
	r := newResolver(t, server(a))
	session := func(c Credential) {
		resolved, err := r.Resolve(quiet(t), named(t, ref), c)
		if err != nil {
			t.Fatal(err)
		}
		f, err := resolved.Session.Fetcher(quiet(t))
		if err != nil {
			t.Fatal(err)
		}
		rc, err := f.Fetch(quiet(t), a.image.Layer)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, rc)
		_ = rc.Close()
	}
	session(Credential{})
	session(Credential{Username: "u", Password: "p"})
	session(Credential{})
	if n := a.tcp(); n != 1 {
		t.Errorf("three sessions made %d connections, want 1", n)
	}
}

// tokens makes a registry require a token, which the registry issues to user u with password p.
func tokens(r *registry) {
	r.answer = func(w http.ResponseWriter, req *http.Request) bool {
		if req.URL.Path == "/token" {
			user, password, _ := req.BasicAuth()
			if user != "u" || password != "p" {
				w.WriteHeader(http.StatusUnauthorized)
				return true
			}
			writeJSON(w, map[string]any{"token": "t", "expires_in": 300})
			return true
		}
		if req.Header.Get("Authorization") != "Bearer t" {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="s",scope="repository:team/app:pull"`, r.URL))
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return false
	}
}

func TestToken(t *testing.T) {
	a := newRegistry(t)
	tokens(a)
	r := newResolver(t, server(a))
	resolved, err := r.Resolve(quiet(t), named(t, ref), Credential{Username: "u", Password: "p"})
	if err != nil {
		t.Fatal(err)
	}
	a.seen()
	f, err := resolved.Session.Fetcher(quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	rc, err := f.Fetch(quiet(t), a.image.Layer)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, rc)
	_ = rc.Close()
	if seen := a.seen(); len(seen) != 1 {
		t.Errorf("the fetch authenticated again: %v", seen)
	}
	if n := resolved.Session.traffic.active.Load(); n != 0 {
		t.Errorf("got %d open requests after the end, want 0", n)
	}
	if _, refused := resolved.Session.traffic.refused(""); refused {
		t.Error("the challenge counts as a refusal")
	}

	for name, c := range map[string]Credential{"wrong": {Username: "u", Password: "guess"}, "none": {}, "for another": {Username: "u", Password: "p", ServerAddress: "other.example"}} {
		_, err := r.Resolve(quiet(t), named(t, ref), c)
		var e *imagepin.Error
		if !errors.As(err, &e) || e.Reason != imagepin.PullAccessDenied || !errdefs.IsUnauthorized(err) {
			t.Errorf("%s: got %v, want reason PullAccessDenied", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "guess") {
			t.Errorf("the error contains the secret: %v", err)
		}
	}
}

func TestNodeCredential(t *testing.T) {
	a := newRegistry(t)
	tokens(a)
	root := t.TempDir()
	writeHosts(t, root, server(a))
	r := withConfig(t, RegistryConfig{ConfigPath: []string{root}, Auths: map[string]Credential{hostOf(a): {Username: "u", Password: "p"}}})
	resolveOnce(t, r)
	// The node's credential does not replace the caller's.
	if _, err := r.Resolve(quiet(t), named(t, ref), Credential{Username: "u", Password: "guess"}); !errdefs.IsUnauthorized(err) {
		t.Errorf("got %v, want an Unauthenticated error", err)
	}
}

// TestRefusingMirrors resolves with lists of hosts that answer with a status code. 0 means that the host has the image.
func TestRefusingMirrors(t *testing.T) {
	const (
		ok          = imagepin.Reason("")
		deniedName  = imagepin.PullAccessDenied
		cannotName  = imagepin.CannotPullImageManifest
		unreachable = -1
	)
	for _, c := range []struct {
		statuses []int
		name     imagepin.Reason
		class    error
	}{
		{[]int{0}, ok, nil},
		{[]int{404, 0}, ok, nil},
		{[]int{500, 0}, ok, nil},
		{[]int{403, 0}, ok, nil},
		{[]int{401, 0}, ok, nil},
		{[]int{unreachable, 0}, ok, nil},
		{[]int{404, 404}, cannotName, errdefs.ErrNotFound},
		{[]int{404, 500}, cannotName, errdefs.ErrUnavailable},
		{[]int{500, 404}, cannotName, errdefs.ErrUnavailable},
		{[]int{429, 404}, cannotName, errdefs.ErrUnavailable},
		{[]int{503, 502}, cannotName, errdefs.ErrUnavailable},
		{[]int{404, 429}, cannotName, errdefs.ErrUnavailable},
		{[]int{403, 404}, deniedName, errdefs.ErrPermissionDenied},
		{[]int{404, 403}, deniedName, errdefs.ErrPermissionDenied},
		{[]int{401, 404}, deniedName, errdefs.ErrUnauthenticated},
		{[]int{404, 401}, deniedName, errdefs.ErrUnauthenticated},
		{[]int{401, 500}, deniedName, errdefs.ErrUnauthenticated},
		{[]int{403, 500}, deniedName, errdefs.ErrPermissionDenied},
		{[]int{500, 403}, deniedName, errdefs.ErrPermissionDenied},
		{[]int{403, 429}, deniedName, errdefs.ErrPermissionDenied},
		{[]int{unreachable, 401}, deniedName, errdefs.ErrUnauthenticated},
		{[]int{403, unreachable}, deniedName, errdefs.ErrPermissionDenied},
		{[]int{404, 403, 404}, deniedName, errdefs.ErrPermissionDenied},
		{[]int{unreachable}, cannotName, errdefs.ErrUnavailable},
		{[]int{unreachable, 404}, cannotName, errdefs.ErrUnavailable},
		{[]int{404, unreachable}, cannotName, errdefs.ErrUnavailable},
		{[]int{400}, cannotName, errdefs.ErrInvalidArgument},
	} {
		t.Run(strings.Trim(fmt.Sprint(c.statuses), "[]"), func(t *testing.T) {
			all := make([]*registry, len(c.statuses))
			for i, s := range c.statuses {
				all[i] = newRegistry(t)
				switch s {
				case 0:
				case unreachable:
					all[i].Close()
				default:
					all[i].answer = status(s)
				}
			}
			r := newResolver(t, mirrors(all...))
			resolved, err := r.Resolve(quiet(t), named(t, ref), Credential{})
			if c.name == ok {
				if err != nil || resolved.Host != hostOf(all[len(all)-1]) {
					t.Errorf("resolved by %q, %v, want the last host", resolved.Host, err)
				}
				return
			}
			var e *imagepin.Error
			if !errors.As(err, &e) || e.Reason != c.name || e.Class != c.class || e.Hint == "" && e.Message == "" {
				t.Errorf("got %v\nwant %s, %v", err, c.name, c.class)
			}
		})
	}
}

// TestServerWithSeveralPaths checks a list in which one server is several hosts with different paths.
func TestServerWithSeveralPaths(t *testing.T) {
	a := newRegistry(t)
	a.answer = func(w http.ResponseWriter, req *http.Request) bool {
		if strings.HasPrefix(req.URL.Path, "/private/") {
			w.WriteHeader(http.StatusForbidden)
		} else {
			w.WriteHeader(http.StatusNotFound)
		}
		return true
	}
	r := newResolver(t, fmt.Sprintf("server = \"%[1]s/public\"\n[host.\"%[1]s/private\"]\ncapabilities = [\"pull\", \"resolve\"]\noverride_path = true\n", a.URL))
	_, err := r.Resolve(quiet(t), named(t, ref), Credential{})
	if !errdefs.IsPermissionDenied(err) {
		t.Errorf("got %v, want a PermissionDenied error", err)
	}
}

func TestFetchRefused(t *testing.T) {
	a := newRegistry(t)
	r := newResolver(t, server(a))
	resolved := resolveOnce(t, r)
	f, err := resolved.Session.Fetcher(quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	for code, want := range map[int]error{
		http.StatusForbidden:           errdefs.ErrPermissionDenied,
		http.StatusUnauthorized:        errdefs.ErrUnauthenticated,
		http.StatusNotFound:            errdefs.ErrNotFound,
		http.StatusTooManyRequests:     errdefs.ErrUnavailable,
		http.StatusBadGateway:          errdefs.ErrUnavailable,
		http.StatusInternalServerError: errdefs.ErrUnavailable,
	} {
		a.answer = status(code)
		_, err = fetch(quiet(t), f, a.image.Layer)
		if errdefs.Resolve(err) != want {
			t.Errorf("%d: got %v, %v, want %v", code, errdefs.Resolve(err), err, want)
		}
	}
}

// TestFetchResumed checks that an interrupted download is resumed where it ended.
func TestFetchResumed(t *testing.T) {
	a := newRegistry(t)
	r := newResolver(t, server(a))
	resolved := resolveOnce(t, r)
	f, err := resolved.Session.Fetcher(quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	var ranges []string
	cut := func(w http.ResponseWriter, req *http.Request) bool {
		ranges = append(ranges, req.Header.Get("Range"))
		layer := a.blobs[a.image.Layer.Digest]
		if len(ranges) > 1 {
			http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(layer))
			return true
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(layer)))
		_, _ = w.Write(layer[:100])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	a.answer = cut
	b, err := fetch(quiet(t), f, a.image.Layer)
	if err != nil || digest.FromBytes(b) != a.image.Layer.Digest {
		t.Errorf("got %d bytes, %v, want the layer", len(b), err)
	}
	if len(ranges) != 2 || ranges[1] != "bytes=100-" {
		t.Errorf("got ranges %q, want the second to be bytes=100-", ranges)
	}
}

func fetch(ctx context.Context, f remotes.Fetcher, desc ocispec.Descriptor) ([]byte, error) {
	rc, err := f.Fetch(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rc.Close() }()
	return io.ReadAll(rc)
}

func TestResolveNotAnImage(t *testing.T) {
	for name, header := range map[string]http.Header{
		"login page":     {"Content-Type": {"text/html"}, "Docker-Content-Digest": {digest.FromString("x").String()}},
		"no type":        {"Docker-Content-Digest": {digest.FromString("x").String()}},
		"damaged digest": {"Content-Type": {"application/vnd.oci.image.index.v1+json"}, "Docker-Content-Digest": {"sha256:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newRegistry(t)
			a.answer = func(w http.ResponseWriter, _ *http.Request) bool {
				for k, v := range header {
					w.Header()[k] = v
				}
				w.Header().Set("Content-Length", "2")
				return true
			}
			_, err := newResolver(t, server(a)).Resolve(quiet(t), named(t, ref), Credential{})
			var e *imagepin.Error
			if !errors.As(err, &e) || e.Reason != imagepin.ContentCorrupt || !errdefs.IsFailedPrecondition(err) {
				t.Errorf("got %v, want reason ContentCorrupt", err)
			}
		})
	}
}

// TestResolveImageID resolves the digest of a configuration, which is the image ID.
func TestResolveImageID(t *testing.T) {
	a := newRegistry(t)
	d := digest.FromString("{}")
	a.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		w.Header().Set("Content-Length", "2")
		return true
	}
	of, _, _ := strings.Cut(ref, ":")
	_, err := newResolver(t, server(a)).Resolve(quiet(t), named(t, of+"@"+d.String()), Credential{})
	var e *imagepin.Error
	if !errors.As(err, &e) || e.Reason != imagepin.ContentCorrupt || !strings.Contains(e.Hint, "not the image ID") {
		t.Errorf("got %v, want a hint to the image ID", err)
	}
}

// TestRejectedManifests checks that the reason is reported why containerd does not accept a manifest.
func TestRejectedManifests(t *testing.T) {
	for name, c := range map[string]struct {
		header http.Header
		class  error
		want   string
	}{
		"schema 1": {http.Header{"Content-Type": {images.MediaTypeDockerSchema1Manifest}, "Docker-Content-Digest": {digest.FromString("x").String()}},
			errdefs.ErrNotImplemented, "schema 1"},
		"schema 1, not signed": {http.Header{"Content-Type": {"application/vnd.docker.distribution.manifest.v1+json"}, "Docker-Content-Digest": {digest.FromString("x").String()}},
			errdefs.ErrNotImplemented, "schema 1"},
		"schema 1, no digest": {http.Header{"Content-Type": {images.MediaTypeDockerSchema1Manifest}}, errdefs.ErrNotImplemented, "no longer supported"},
		"too large": {http.Header{"Content-Type": {ocispec.MediaTypeImageIndex}, "Docker-Content-Digest": {digest.FromString("x").String()},
			"Content-Length": {strconv.FormatInt(docker.MaxManifestSize+1, 10)}}, errdefs.ErrFailedPrecondition, "larger than 4393216 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newRegistry(t)
			a.answer = func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Content-Length", "2")
				maps.Copy(w.Header(), c.header)
				return true
			}
			_, err := newResolver(t, server(a)).Resolve(quiet(t), named(t, ref), Credential{})
			var e *imagepin.Error
			if !errors.As(err, &e) || e.Reason != imagepin.CannotPullImageManifest || e.Class != c.class || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %v, %q", err, c.class, c.want)
			}
			if errdefs.IsNotFound(err) || Unavailable(err) {
				t.Errorf("the error means that the tag is gone or the registry is unavailable: %v", err)
			}
		})
	}
}

// hanging returns a resolver whose registry does not answer. The registry sends to requested for each request.
func hanging(t *testing.T) (r *Resolver, requested chan struct{}) {
	a := newRegistry(t)
	release := make(chan struct{})
	requested = make(chan struct{}, 10)
	a.answer = func(http.ResponseWriter, *http.Request) bool {
		requested <- struct{}{}
		<-release
		return false
	}
	t.Cleanup(func() { close(release) })
	return newResolver(t, server(a)), requested
}

func TestResolveTimeout(t *testing.T) {
	r, _ := hanging(t)
	r.config.Timeout = 20 * time.Millisecond
	_, err := r.Resolve(quiet(t), named(t, ref), Credential{})
	var e *imagepin.Error
	if !errors.As(err, &e) || e.Reason != imagepin.ManifestPullTimeout || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want reason ManifestPullTimeout", err)
	}
}

func TestResolveCanceled(t *testing.T) {
	r, requested := hanging(t)
	r.config.Timeout = time.Hour
	cause := errors.New("canceled by the caller")
	ctx, cancel := context.WithCancelCause(quiet(t))
	go func() {
		<-requested
		cancel(cause)
	}()
	if _, err := r.Resolve(ctx, named(t, ref), Credential{}); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
}

// waited is a context that calls waiting when something waits for its end.
type waited struct {
	context.Context
	once    sync.Once
	waiting func()
}

func (w *waited) Done() <-chan struct{} {
	w.once.Do(w.waiting)
	return w.Context.Done()
}

func TestConcurrentResolvesAreMerged(t *testing.T) {
	a := newRegistry(t)
	release := make(chan struct{})
	a.answer = func(http.ResponseWriter, *http.Request) bool {
		<-release
		return false
	}
	r := newResolver(t, server(a))
	var callers, waiting sync.WaitGroup
	const each = 100
	for n := range 2 * each {
		c := Credential{}
		if n%2 == 1 {
			c = Credential{Username: "u", Password: "p"}
		}
		waiting.Add(1)
		callers.Go(func() {
			got, err := r.Resolve(&waited{Context: quiet(t), waiting: waiting.Done}, named(t, ref), c)
			if err != nil || got.Root.Digest != a.root.Digest {
				t.Error(err)
			}
		})
	}
	waiting.Wait()
	close(release)
	callers.Wait()
	if seen := a.seen(); len(seen) != 2 {
		t.Errorf("two credentials made %d requests, want 2", len(seen))
	}
}
