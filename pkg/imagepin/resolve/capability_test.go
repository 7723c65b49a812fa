package resolve

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// pullOnly returns a hosts.toml with a mirror that has only the capability pull, and a registry.
func pullOnly(mirror, origin *registry) string {
	return server(origin) + fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\"]\n", mirror.URL)
}

func byDigest(t *testing.T, r *registry) reference.Canonical {
	t.Helper()
	d, err := reference.WithDigest(reference.TrimNamed(named(t, ref)), r.root.Digest)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestPullOnlyMirrorProvesNothing checks that a mirror with only the capability pull serves content but does not prove
// credentials.
func TestPullOnlyMirrorProvesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		origin func(http.ResponseWriter, *http.Request) bool
		class  error
	}{
		"accepts":     {nil, nil},
		"401":         {status(401), errdefs.ErrUnauthenticated},
		"403":         {status(403), errdefs.ErrPermissionDenied},
		"404":         {status(404), errdefs.ErrNotFound},
		"503":         {status(503), errdefs.ErrUnavailable},
		"unreachable": {func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }, errdefs.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			mirror, origin := newRegistry(t), newRegistry(t)
			origin.answer = c.origin
			r := newResolver(t, pullOnly(mirror, origin))
			d := byDigest(t, origin)

			granted, err := r.Authorize(quiet(t), d, Credential{})
			if errdefs.Resolve(err) != c.class && c.class != nil || c.class == nil && (err != nil || !granted.Proves || granted.Host != hostOf(origin)) {
				t.Errorf("authorize: got %v, %+v, want %v", err, granted, c.class)
			}
			if seen := mirror.seen(); len(seen) != 0 {
				t.Errorf("authorize sent requests to the mirror: %v", seen)
			}

			found, err := r.Resolve(quiet(t), d, Credential{})
			if err != nil || found.Proves || found.Host != hostOf(mirror) || found.Root.Digest != origin.root.Digest {
				t.Errorf("resolve: got %v, %+v, want the mirror without a proof", err, found)
			}
			for _, s := range []*Session{granted.Session, found.Session} {
				if s == nil {
					continue
				}
				mirror.seen()
				f, err := s.Fetcher(quiet(t))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := fetch(quiet(t), f, origin.image.Layer); err != nil || len(mirror.seen()) != 1 {
					t.Errorf("the mirror did not serve the layer: %v", err)
				}
			}
		})
	}
}

// TestPullOnlyMirrorWithoutTheDigest checks that a digest that such a mirror does not have comes from the registry and
// proves the credential.
func TestPullOnlyMirrorWithoutTheDigest(t *testing.T) {
	mirror, origin := newRegistry(t), newRegistry(t)
	mirror.answer = status(404)
	found, err := newResolver(t, pullOnly(mirror, origin)).Resolve(quiet(t), byDigest(t, origin), Credential{})
	if err != nil || !found.Proves || found.Host != hostOf(origin) {
		t.Errorf("got %v, %+v, want the registry with a proof", err, found)
	}
}

// TestNoHostMayResolve checks that a host with only the capability pull does not resolve tags.
func TestNoHostMayResolve(t *testing.T) {
	a := newRegistry(t)
	r := newResolver(t, server(a)+"capabilities = [\"pull\"]\n")
	calls := map[string]func() (Resolved, error){
		"tag":       func() (Resolved, error) { return r.Resolve(quiet(t), named(t, ref), Credential{}) },
		"authorize": func() (Resolved, error) { return r.Authorize(quiet(t), byDigest(t, a), Credential{}) },
	}
	for name, call := range calls {
		_, err := call()
		var e *imagepin.Error
		if !errors.As(err, &e) || e.Reason != imagepin.CannotPullImageManifest || e.Class != errdefs.ErrFailedPrecondition {
			t.Errorf("%s: got %v, want reason CannotPullImageManifest", name, err)
		}
	}
	if seen := a.seen(); len(seen) != 0 {
		t.Errorf("unexpected requests: %v", seen)
	}
	if found, err := r.Resolve(quiet(t), byDigest(t, a), Credential{}); err != nil || found.Proves {
		t.Errorf("by digest: got %v, %+v, want no proof", err, found)
	}
}
