package resolve

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// stale makes the tag of a registry another image than that of others.
func stale(r *registry) {
	r.image = r.blobs.Image("linux/amd64", "stale", nil)
	r.root = r.blobs.Index(r.image.Manifest)
}

// TestResolveNow resolves a tag that moves while the answer to an earlier call is on its way. It returns the new image.
func TestResolveNow(t *testing.T) {
	for _, origin := range []bool{false, true} {
		g := newRegistry(t)
		r := newResolver(t, server(g))
		earlier, next := g.root, g.root
		next.Digest = digest.FromString("next")
		asked, release := make(chan struct{}), make(chan struct{})
		var requests atomic.Int32
		g.answer = func(w http.ResponseWriter, _ *http.Request) bool {
			desc := next
			if requests.Add(1) == 1 {
				desc = earlier
				close(asked)
				<-release
			}
			w.Header().Set("Content-Type", desc.MediaType)
			w.Header().Set("Docker-Content-Digest", desc.Digest.String())
			w.Header().Set("Content-Length", fmt.Sprint(desc.Size))
			return true
		}
		before := r.Resolve
		if origin {
			before = r.ResolveAtOrigin
		}
		done := make(chan Resolved, 1)
		go func() {
			found, err := before(quiet(t), named(t, ref), Credential{})
			if err != nil {
				t.Error(err)
			}
			done <- found
		}()
		<-asked
		found, err := r.ResolveNow(quiet(t), named(t, ref), Credential{}, origin)
		if err != nil || found.Root.Digest != next.Digest {
			t.Errorf("origin %t: got %+v, %v, want %s", origin, found, err, next.Digest)
		}
		close(release)
		if found := <-done; found.Root.Digest != earlier.Digest || requests.Load() != 2 {
			t.Errorf("origin %t: the earlier call got %+v, after %d requests", origin, found, requests.Load())
		}
	}
}

// TestResolveAtOrigin resolves a tag at the origin, although a mirror claims the capability resolve. The mirror serves content.
func TestResolveAtOrigin(t *testing.T) {
	const head = "HEAD /v2/team/app/manifests/1"
	for name, c := range map[string]struct {
		origin   func(http.ResponseWriter, *http.Request) bool
		class    error
		requests int // to the origin; containerd repeats a request after a 5xx
	}{
		"accepts": {nil, nil, 1},
		"401":     {status(401), errdefs.ErrUnauthenticated, 1},
		"404":     {status(404), errdefs.ErrNotFound, 1},
		"503":     {status(503), errdefs.ErrUnavailable, 2},
	} {
		t.Run(name, func(t *testing.T) {
			mirror, origin := newRegistry(t), newRegistry(t)
			stale(mirror)
			origin.answer = c.origin
			mirror.blobs[origin.image.Layer.Digest] = origin.blobs[origin.image.Layer.Digest]
			r := newResolver(t, server(origin)+fmt.Sprintf("[host.%q]\n", mirror.URL))

			found, err := r.ResolveAtOrigin(quiet(t), named(t, ref), Credential{})
			if seen := origin.seen(); !slices.Equal(seen, slices.Repeat([]string{head}, c.requests)) {
				t.Errorf("requests to the origin: %v", seen)
			}
			if seen := mirror.seen(); len(seen) != 0 {
				t.Errorf("requests to the mirror: %v", seen)
			}
			if c.class != nil {
				if errdefs.Resolve(err) != c.class {
					t.Errorf("got %v, want %v", err, c.class)
				}
				return
			}
			if err != nil || found.Root.Digest != origin.root.Digest || found.Host != hostOf(origin) || !found.Proves {
				t.Fatalf("got %+v, %v, want the image of the origin", found, err)
			}
			f, err := found.Session.Fetcher(quiet(t))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fetch(quiet(t), f, origin.image.Layer); err != nil {
				t.Fatal(err)
			}
			if at, mirrored := origin.seen(), mirror.seen(); len(at) != 0 || len(mirrored) != 1 {
				t.Errorf("requests for the layer: %v to the origin, %v to the mirror", at, mirrored)
			}
			if found, err = r.Resolve(quiet(t), named(t, ref), Credential{}); err != nil || found.Root.Digest != mirror.root.Digest {
				t.Errorf("a lookup at all hosts: got %+v, %v, want the image of the mirror", found, err)
			}
		})
	}
}

// TestOriginIsUnreachable checks that an origin that is away is unavailable, and that the mirror is not asked.
func TestOriginIsUnreachable(t *testing.T) {
	mirror, origin := newRegistry(t), newRegistry(t)
	r := newResolver(t, server(origin)+fmt.Sprintf("[host.%q]\n", mirror.URL))
	origin.Close()
	if _, err := r.ResolveAtOrigin(quiet(t), named(t, ref), Credential{}); !Unavailable(err) {
		t.Errorf("got %v, want unavailable", err)
	}
	if seen := mirror.seen(); len(seen) != 0 {
		t.Errorf("requests to the mirror: %v", seen)
	}
}

// TestOriginMayNotResolve checks the error for a server without the capability resolve.
func TestOriginMayNotResolve(t *testing.T) {
	mirror, origin := newRegistry(t), newRegistry(t)
	r := newResolver(t, server(origin)+fmt.Sprintf("capabilities = [\"pull\"]\n[host.%q]\n", mirror.URL))
	_, err := r.ResolveAtOrigin(quiet(t), named(t, ref), Credential{})
	var e *imagepin.Error
	if !errors.As(err, &e) || e.Class != errdefs.ErrFailedPrecondition || !strings.Contains(e.Hint, "resolve_at") {
		t.Errorf("got %v, want the hint about resolve_at", err)
	}
	if seen := append(mirror.seen(), origin.seen()...); len(seen) != 0 {
		t.Errorf("requests: %v", seen)
	}
}

// TestWhichHostIsTheOrigin checks which of the configured hosts is the origin.
func TestWhichHostIsTheOrigin(t *testing.T) {
	for what, c := range map[string]struct {
		hosts   string
		mirrors map[string][]string
		want    string
	}{
		"nothing configured":          {"", nil, name},
		"only mirrors":                {"[host.\"https://mirror.example\"]\n", nil, name},
		"another server":              {"server = \"https://origin.example\"\n[host.\"https://registry.example\"]\n", nil, "origin.example"},
		"mirrors of older versions":   {"", map[string][]string{name: {"https://mirror.example"}}, name},
		"the registry before mirrors": {"", map[string][]string{name: {"https://" + name, "https://mirror.example"}}, name},
		"mirrors of all registries":   {"", map[string][]string{"*": {"https://mirror.example"}}, name},
	} {
		config := RegistryConfig{Mirrors: c.mirrors}
		if c.mirrors == nil {
			config.ConfigPath = []string{t.TempDir()}
			if c.hosts != "" {
				dir := config.ConfigPath[0] + "/" + name
				if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(dir+"/hosts.toml", []byte(c.hosts), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
		}
		h := newHosts(config, time.Minute)
		all, err := h.lookup(quiet(t), name)
		if err != nil {
			t.Fatal(err)
		}
		if got := h.origin(name, all); len(got) != 1 || got[0].Host != c.want {
			t.Errorf("%s: got %v, want %s", what, got, c.want)
		}
	}
}
