package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/imagepin/imagepin/cmd/imagepin/internal/registrytest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

func named(t *testing.T, s string) reference.Named {
	t.Helper()
	n, err := reference.ParseDockerRef(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// quiet returns a context whose logger fails the test: a client logs nothing.
func quiet(t *testing.T) context.Context {
	l := logrus.New()
	l.SetLevel(logrus.TraceLevel)
	l.SetOutput(writerFunc(func(p []byte) (int, error) {
		t.Errorf("logged %s", p)
		return len(p), nil
	}))
	return log.WithLogger(t.Context(), logrus.NewEntry(l))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func client(t *testing.T, c Config) *Client {
	t.Helper()
	if c.HostsDirs == nil {
		c.HostsDirs = []string{}
	}
	if c.Credentials == nil {
		c.Credentials = func(string) (resolve.Credential, error) { return resolve.Credential{}, nil }
	}
	client, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// wantError fails if err is not an imagepin.Error with a reason and a class, or does not contain a text.
func wantError(t *testing.T, err error, reason imagepin.Reason, class error, text string) {
	t.Helper()
	var e *imagepin.Error
	if !errors.As(err, &e) || e.Reason != reason || !errors.Is(err, class) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want %s (%v) with %q", err, reason, class, text)
	}
}

func TestResolveAndRead(t *testing.T) {
	r := registrytest.New(t)
	index := r.Image("shop/cart:1", "cart", "linux/amd64", "linux/arm64")
	ref := named(t, r.Host()+"/shop/cart:1")
	c := client(t, Config{})
	desc, err := c.Resolve(quiet(t), ref)
	if err != nil || desc.Digest != index.Digest || desc.Size != index.Size || desc.MediaType != index.MediaType {
		t.Fatalf("got %+v, %v, want %+v", desc, err, index)
	}
	data, err := c.ReadAll(quiet(t), ref, desc)
	if err != nil || digest.FromBytes(data) != index.Digest {
		t.Errorf("got %d bytes, %v", len(data), err)
	}
	want := []string{"HEAD /v2/shop/cart/manifests/1", "GET /v2/shop/cart/manifests/" + index.Digest.String()}
	if got := r.Requests(); !slices.Equal(got, want) {
		t.Errorf("got requests %v, want %v", got, want)
	}
}

func TestReadVerifies(t *testing.T) {
	r := registrytest.New(t)
	ref := named(t, r.Host()+"/shop/cart:1")
	good := r.Blobs.Add(ocispec.MediaTypeImageConfig, []byte("configuration"))
	wrong := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromString("other"), Size: 7}
	r.Blobs[wrong.Digest] = []byte("changed")
	longer := good
	longer.Size = 3
	huge := r.Blobs.Add(ocispec.MediaTypeImageConfig, make([]byte, MaxRead+1))
	unsized := huge
	unsized.Size = 0
	c := client(t, Config{})
	if data, err := c.ReadAll(quiet(t), ref, good); err != nil || string(data) != "configuration" {
		t.Errorf("got %q, %v", data, err)
	}
	for _, d := range []ocispec.Descriptor{wrong, longer, huge, unsized, {Digest: "none"}} {
		_, err := c.ReadAll(quiet(t), ref, d)
		wantError(t, err, imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition, d.Digest.String())
	}
}

// TestURLsAreNotUsed checks that content does not direct the client to other addresses.
func TestURLsAreNotUsed(t *testing.T) {
	r, other := registrytest.New(t), registrytest.New(t)
	desc := r.Blobs.Add(ocispec.MediaTypeImageConfig, []byte("configuration"))
	desc.URLs = []string{other.URL + "/x"}
	if _, err := client(t, Config{}).ReadAll(quiet(t), named(t, r.Host()+"/shop/cart:1"), desc); err != nil {
		t.Error(err)
	}
	if got := other.Requests(); len(got) > 0 {
		t.Errorf("got requests %v to the address in the descriptor", got)
	}
}

func TestFetchFromOffset(t *testing.T) {
	r := registrytest.New(t)
	blob := r.Blobs.Add(ocispec.MediaTypeImageLayer, []byte("0123456789"))
	empty := r.Blobs.Add(ocispec.MediaTypeImageLayer, nil)
	const noRequest = "none" // containerd knows the content of an empty blob
	ranges := make(chan string, 10)
	r.Answer = func(_ http.ResponseWriter, req *http.Request) bool {
		ranges <- req.Header.Get("Range")
		return false
	}
	c := client(t, Config{})
	ref := named(t, r.Host()+"/shop/cart")
	for _, test := range []struct {
		desc   ocispec.Descriptor
		offset int64
		want   string
		header string
	}{
		{blob, 0, "0123456789", ""}, {blob, 4, "456789", "bytes=4-"}, {empty, 0, "", noRequest},
	} {
		rc, err := c.Fetch(quiet(t), ref, test.desc, test.offset)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(rc)
		if err != nil || string(data) != test.want {
			t.Errorf("offset %d: got %q, %v", test.offset, data, err)
		}
		if err := rc.Close(); err != nil {
			t.Error(err)
		}
		if test.header == noRequest {
			continue
		}
		if got := <-ranges; got != test.header {
			t.Errorf("offset %d: got range %q, want %q", test.offset, got, test.header)
		}
	}
}

func TestErrors(t *testing.T) {
	r := registrytest.New(t)
	r.Image("shop/cart:1", "cart", "linux/amd64")
	ref := named(t, r.Host()+"/shop/cart:2")
	_, err := client(t, Config{}).Resolve(quiet(t), ref)
	wantError(t, err, imagepin.CannotPullImageManifest, errdefs.ErrNotFound, ref.String())
	_, err = client(t, Config{}).Resolve(quiet(t), named(t, r.Host()+"/shop/cart@"+digest.FromString("x").String()))
	wantError(t, err, imagepin.CannotPullImageManifest, errdefs.ErrNotFound, "no such tag or digest")
	r.Answer = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		return true
	}
	_, err = client(t, Config{}).Resolve(quiet(t), ref)
	wantError(t, err, imagepin.PullAccessDenied, errdefs.ErrPermissionDenied, "docker login")
	r.Close()
	_, err = client(t, Config{}).Resolve(quiet(t), ref)
	wantError(t, err, imagepin.CannotPullImageManifest, errdefs.ErrUnavailable, "connection refused")
}

func TestStalled(t *testing.T) {
	r := registrytest.New(t)
	blob := r.Blobs.Add(ocispec.MediaTypeImageLayer, []byte("0123456789"))
	r.Answer = func(w http.ResponseWriter, req *http.Request) bool {
		w.Header().Set("Content-Length", "10")
		_, _ = w.Write([]byte("0123"))
		w.(http.Flusher).Flush()
		<-req.Context().Done()
		return true
	}
	rc, err := client(t, Config{Timeout: 200 * time.Millisecond}).Fetch(quiet(t), named(t, r.Host()+"/shop/cart"), blob, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	data, err := io.ReadAll(rc)
	if string(data) != "0123" {
		t.Errorf("got %q", data)
	}
	wantError(t, err, imagepin.PullStalled, errdefs.ErrUnavailable, blob.Digest.String())
}

func TestCanceled(t *testing.T) {
	r := registrytest.New(t)
	ctx, cancel := context.WithCancelCause(quiet(t))
	gone := errors.New("gone")
	r.Answer = func(_ http.ResponseWriter, req *http.Request) bool {
		cancel(gone)
		<-req.Context().Done()
		return true
	}
	if _, err := client(t, Config{}).Resolve(ctx, named(t, r.Host()+"/shop/cart:1")); !errors.Is(err, gone) {
		t.Errorf("got %v, want the cause", err)
	}
}

// limit answers the first n requests with 429.
func limit(n int, after string) func(http.ResponseWriter, *http.Request) bool {
	var mu sync.Mutex
	return func(w http.ResponseWriter, _ *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if n--; n < 0 {
			return false
		}
		if after != "" {
			w.Header().Set("Retry-After", after)
		}
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
}

// TestRateLimit checks that a registry that answers 429 gets no further request before the time that it asks for.
func TestRateLimit(t *testing.T) {
	r := registrytest.New(t)
	index := r.Image("shop/cart:1", "cart", "linux/amd64")
	for _, after := range []string{"1", "", "not a time"} {
		r.Answer = limit(1, after)
		c := client(t, Config{})
		desc, err := c.Resolve(quiet(t), named(t, r.Host()+"/shop/cart:1"))
		if err != nil || desc.Digest != index.Digest {
			t.Errorf("got %s, %v", desc.Digest, err)
		}
		if got := r.Requests(); len(got) != 2 {
			t.Errorf("Retry-After %q: got requests %v, want 2", after, got)
		}
		r.Answer = limit(1, after)
		if _, err := c.ReadAll(quiet(t), named(t, r.Host()+"/shop/cart"), index); err != nil {
			t.Error(err)
		}
		if got := r.Requests(); len(got) != 2 {
			t.Errorf("Retry-After %q: got requests %v, want 2", after, got)
		}
	}
}

func TestRateLimitTooLong(t *testing.T) {
	r := registrytest.New(t)
	for i := range 10 {
		r.Image(fmt.Sprintf("shop/cart:%d", i), "cart", "linux/amd64")
	}
	r.Answer = limit(1000, "21600")
	c := client(t, Config{Concurrency: 1})
	for i := range 10 {
		_, err := c.Resolve(quiet(t), named(t, fmt.Sprintf("%s/shop/cart:%d", r.Host(), i)))
		wantError(t, err, imagepin.CannotPullImageManifest, errdefs.ErrUnavailable, r.Host()+" limits the rate of requests, for another 6h0m0s")
	}
	if got := r.Requests(); len(got) != 1 {
		t.Errorf("got %d requests after the registry asked to wait, want 1", len(got))
	}
}

func TestRetryAfter(t *testing.T) {
	for _, test := range []struct {
		value string
		count int
		want  time.Duration
	}{
		{"5", 3, 5 * time.Second}, {"0", 3, 0}, {"", 0, time.Second}, {"", 2, 4 * time.Second}, {"", 50, 32 * time.Second},
		{"-1", 0, time.Second}, {"999999999999999999", 0, maxRetryAfter}, {"Thu, 01 Jan 2015 00:00:00 GMT", 3, 0},
		{"Fri, 01 Jan 2300 00:00:00 GMT", 0, maxRetryAfter},
	} {
		if got := retryAfter(http.Header{"Retry-After": {test.value}}, test.count); got != test.want {
			t.Errorf("%q: got %s, want %s", test.value, got, test.want)
		}
	}
}

// TestConcurrency checks that a registry gets no more requests at one time than configured.
func TestConcurrency(t *testing.T) {
	r := registrytest.New(t)
	const n = 60
	for i := range n {
		r.Image(fmt.Sprintf("shop/cart:%d", i), "cart", "linux/amd64")
	}
	c := client(t, Config{Concurrency: 3})
	var g errgroup.Group
	for i := range n {
		g.Go(func() error {
			ref := named(t, fmt.Sprintf("%s/shop/cart:%d", r.Host(), i))
			desc, err := c.Resolve(quiet(t), ref)
			if err != nil {
				return err
			}
			_, err = c.ReadAll(quiet(t), ref, desc)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := r.MaxConcurrent(); got > 3 {
		t.Errorf("got %d requests at one time, want at most 3", got)
	}
}

// TestMirror checks that hosts.toml is used, and that the mirror's own credential is.
func TestMirror(t *testing.T) {
	mirror := registrytest.New(t)
	index := mirror.Image("shop/cart:1", "cart", "linux/amd64")
	basicAuth(mirror, "user", "secret")
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "registry.example", "hosts.toml"), fmt.Sprintf("[host.%q]\ncapabilities = [\"pull\", \"resolve\"]\n", mirror.URL))
	asked := make(map[string]int)
	c := client(t, Config{HostsDirs: []string{filepath.Join(dir, "absent"), dir}, Credentials: func(host string) (resolve.Credential, error) {
		asked[host]++
		return resolve.Credential{Username: "user", Password: "secret"}, nil
	}})
	desc, err := c.Resolve(quiet(t), named(t, "registry.example/shop/cart:1"))
	if err != nil || desc.Digest != index.Digest {
		t.Errorf("got %s, %v", desc.Digest, err)
	}
	if len(asked) != 1 || asked[mirror.Host()] != 1 {
		t.Errorf("asked for the credentials of %v, want that of %s once", asked, mirror.Host())
	}
}

func basicAuth(r *registrytest.Registry, user, password string) {
	r.Answer = func(w http.ResponseWriter, req *http.Request) bool {
		if u, p, _ := req.BasicAuth(); u == user && p == password {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
