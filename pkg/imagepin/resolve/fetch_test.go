package resolve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestFetchWithUnavailableHost checks that the error is not NotFound if one host does not have the content and another
// is unavailable, because the content may exist.
func TestFetchWithUnavailableHost(t *testing.T) {
	for name, other := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"503": status(503), "429": status(429), "cut": func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) },
	} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s first=%t", name, first), func(t *testing.T) {
				absent, fails := newRegistry(t), newRegistry(t)
				absent.answer, fails.answer = status(404), other
				list := mirrors(absent, fails)
				if first {
					list = mirrors(fails, absent)
				}
				f, err := newResolver(t, list).Session(named(t, ref), Credential{}).Fetcher(quiet(t))
				if err != nil {
					t.Fatal(err)
				}
				_, err = fetch(quiet(t), f, absent.image.Layer)
				if err == nil || errdefs.IsNotFound(err) {
					t.Errorf("got %v, want an error other than NotFound", err)
				}
				var e *imagepin.Error
				if !first && (!errors.As(err, &e) || e.Reason != imagepin.CannotPullImage || e.Class != errdefs.ErrUnavailable) {
					t.Errorf("got %v, want reason CannotPullImage and class Unavailable", err)
				}
			})
		}
	}
}

// TestFetchRefusingMirrors fetches from lists of hosts that answer with a status code, of which one refuses access. The
// fetch is denied, whichever host the error of containerd's fetcher is from.
func TestFetchRefusingMirrors(t *testing.T) {
	const unreachable, badToken = -1, -2
	for _, c := range []struct {
		statuses []int
		class    error
	}{
		{[]int{403, 404}, errdefs.ErrPermissionDenied},
		{[]int{404, 403}, errdefs.ErrPermissionDenied},
		{[]int{401, 404}, errdefs.ErrUnauthenticated},
		{[]int{404, 401}, errdefs.ErrUnauthenticated},
		{[]int{401, 500}, errdefs.ErrUnauthenticated},
		{[]int{500, 403}, errdefs.ErrPermissionDenied},
		{[]int{403, 429}, errdefs.ErrPermissionDenied},
		{[]int{unreachable, 401}, errdefs.ErrUnauthenticated},
		{[]int{unreachable, 403}, errdefs.ErrPermissionDenied},
		{[]int{403, unreachable}, errdefs.ErrPermissionDenied},
		{[]int{unreachable, 404, 403}, errdefs.ErrPermissionDenied},
		{[]int{404, 403, 404}, errdefs.ErrPermissionDenied},
		{[]int{badToken, 403}, errdefs.ErrUnauthenticated},
	} {
		for _, what := range []string{"layer", "manifest"} {
			t.Run(strings.Trim(fmt.Sprint(c.statuses), "[]")+" "+what, func(t *testing.T) {
				all := make([]*registry, len(c.statuses))
				for i, s := range c.statuses {
					all[i] = newRegistry(t)
					switch s {
					case unreachable:
						all[i].Close()
					case badToken:
						withTokens(t, all[i], func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
					default:
						all[i].answer = status(s)
					}
				}
				f, err := newResolver(t, mirrors(all...)).Session(named(t, ref), Credential{}).Fetcher(quiet(t))
				if err != nil {
					t.Fatal(err)
				}
				desc := map[string]ocispec.Descriptor{"layer": all[0].image.Layer, "manifest": all[0].image.Manifest}[what]
				_, err = fetch(quiet(t), f, desc)
				checkError(t, err, imagepin.PullAccessDenied, c.class)
			})
		}
	}
}

// TestFetchUnreachableIsNotDenied lets a request fail without an answer while a concurrent fetch has got a challenge and
// waits for its token. The host has not refused access.
func TestFetchUnreachableIsNotDenied(t *testing.T) {
	a := newRegistry(t)
	sent, waiting, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
	withTokens(t, a, func(w http.ResponseWriter, req *http.Request) {
		close(waiting)
		<-release
		token(w, req)
	})
	challenge := a.answer
	a.answer = func(w http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, a.image.Layer.Digest.String()) {
			close(sent)
			<-waiting
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, err = conn.Write([]byte("not HTTP\n\n")) // an error that containerd does not try again
			}
			if err != nil || conn.Close() != nil {
				t.Errorf("cannot answer: %v", err)
			}
			return true
		}
		return challenge(w, req)
	}
	f, err := newResolver(t, server(a)).Session(named(t, ref), Credential{}).Fetcher(quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	other := make(chan error, 1)
	go func() {
		<-sent
		_, err := fetch(quiet(t), f, a.image.Config)
		other <- err
	}()
	_, err = fetch(quiet(t), f, a.image.Layer)
	var e *imagepin.Error
	if err == nil || errors.As(err, &e) && e.Reason == imagepin.PullAccessDenied {
		t.Errorf("got %v, want an error other than PullAccessDenied", err)
	}
	close(release)
	if err := <-other; err != nil {
		t.Errorf("the other fetch: %v", err)
	}
}

// TestFetchCanceledIsNotDenied cancels a fetch at the second host, after the first one has refused access.
func TestFetchCanceledIsNotDenied(t *testing.T) {
	refuses, asked := newRegistry(t), newRegistry(t)
	ctx, cancel := context.WithCancel(quiet(t))
	refuses.answer = status(403)
	asked.answer = func(_ http.ResponseWriter, req *http.Request) bool {
		cancel()
		<-req.Context().Done()
		return true
	}
	f, err := newResolver(t, mirrors(refuses, asked)).Session(named(t, ref), Credential{}).Fetcher(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fetch(ctx, f, asked.image.Layer)
	var e *imagepin.Error
	if err == nil || errors.As(err, &e) && e.Reason == imagepin.PullAccessDenied {
		t.Errorf("got %v, want an error other than PullAccessDenied", err)
	}
}

// TestFetchInterrupted interrupts the connection at every attempt to resume. That a mirror has refused access says
// nothing about the host that sent the content.
func TestFetchInterrupted(t *testing.T) {
	a, refuses := newRegistry(t), newRegistry(t)
	layer := a.blobs[a.image.Layer.Digest]
	refuses.answer = status(403)
	a.answer = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Length", fmt.Sprint(len(layer)))
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, hosts := range map[string]string{"registry": server(a), "registry after a mirror": mirrors(refuses, a)} {
		f, err := newResolver(t, hosts).Session(named(t, ref), Credential{}).Fetcher(quiet(t))
		if err != nil {
			t.Fatal(err)
		}
		_, err = fetch(quiet(t), f, a.image.Layer)
		var e *imagepin.Error
		if !errors.As(err, &e) || e.Reason != imagepin.CannotPullImage || e.Class != errdefs.ErrUnavailable || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: got %v, want reason CannotPullImage and class Unavailable", name, err)
		}
	}
}

// TestFetchSeeks checks that Seek resumes a download.
func TestFetchSeeks(t *testing.T) {
	a := newRegistry(t)
	f, err := newResolver(t, server(a)).Session(named(t, ref), Credential{}).Fetcher(quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	layer := a.blobs[a.image.Layer.Digest]
	rc, err := f.Fetch(quiet(t), a.image.Layer)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rc.Close() }()
	const offset = 100
	if n, err := rc.(io.Seeker).Seek(offset, io.SeekStart); n != offset || err != nil {
		t.Fatalf("Seek: got %d, %v, want %d", n, err, offset)
	}
	rest, err := io.ReadAll(rc)
	if err != nil || digest.FromBytes(rest) != digest.FromBytes(layer[offset:]) {
		t.Errorf("got %d other bytes, %v, want %d", len(rest), err, len(layer)-offset)
	}
}

// TestInvalidConfiguration checks that an invalid registry configuration fails fetches and resolves.
func TestInvalidConfiguration(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := withConfig(t, RegistryConfig{ConfigPath: []string{root}})
	want := "configuration of registry " + name
	if _, err := r.Session(named(t, ref), Credential{}).Fetcher(quiet(t)); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("fetcher: got %v, want %q", err, want)
	}
	if _, err := r.Resolve(quiet(t), named(t, ref), Credential{}); err == nil || !strings.Contains(err.Error(), want) || errdefs.IsNotFound(err) ||
		!strings.Contains(err.Error(), "\nCheck the registry's configuration on this node") {
		t.Errorf("resolve: got %v, want %q", err, want)
	}
	if _, err := r.Authorize(quiet(t), byDigest(t, newRegistry(t)), Credential{}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("authorize: got %v, want %q", err, want)
	}
}

// TestHostHeaders checks that the headers of a host are sent only to the host and its token service.
func TestHostHeaders(t *testing.T) {
	mirror, origin := newRegistry(t), newRegistry(t)
	tokens(mirror)
	with := strings.Replace(mirrors(mirror, origin), "\"resolve\"]\n", "\"resolve\"]\n  [host.\""+mirror.URL+"\".header]\n  x-key = \"k\"\n", 1)
	root := t.TempDir()
	writeHosts(t, root, with)
	r := withConfig(t, RegistryConfig{ConfigPath: []string{root}, Headers: http.Header{"X-Node": {"n1"}}})
	if _, err := r.Resolve(quiet(t), named(t, ref), Credential{Username: "u", Password: "guess"}); err != nil {
		t.Fatal(err)
	}
	for _, h := range mirror.headers {
		if h.Get("X-Key") != "k" || h.Get("X-Node") != "n1" {
			t.Errorf("unexpected headers to the mirror: %v", h)
		}
	}
	for _, h := range origin.headers {
		if h.Get("X-Key") != "" || h.Get("X-Node") != "n1" {
			t.Errorf("unexpected headers to the registry: %v", h)
		}
	}
	if len(mirror.headers) < 2 || len(origin.headers) == 0 {
		t.Errorf("got %d requests to the mirror and %d to the registry", len(mirror.headers), len(origin.headers))
	}
}

// TestUntrustedCertificate checks that an untrusted certificate is not reported as denied access.
func TestUntrustedCertificate(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(token))
	t.Cleanup(s.Close)
	a := newRegistry(t)
	withTokens(t, a, token)
	inner := a.answer
	a.answer = func(w http.ResponseWriter, req *http.Request) bool {
		w = &realm{ResponseWriter: w, to: s.URL}
		return inner(w, req)
	}
	for what, hosts := range map[string]string{"registry": fmt.Sprintf("server = %q\n", s.URL), "token service": server(a)} {
		_, err := newResolver(t, hosts).Resolve(quiet(t), named(t, ref), Credential{})
		var e *imagepin.Error
		if !errors.As(err, &e) || e.Class != errdefs.ErrUnavailable || !strings.Contains(e.Hint, "certificate") || !Unavailable(err) {
			t.Errorf("%s: got %v, want class Unavailable and a hint about certificates", what, err)
		}
	}
}

// realm is a ResponseWriter that replaces the token service in challenges.
type realm struct {
	http.ResponseWriter
	to string
}

func (r *realm) WriteHeader(code int) {
	if code == http.StatusUnauthorized {
		r.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token"`, r.to))
	}
	r.ResponseWriter.WriteHeader(code)
}
