package resolve

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

func canonical(t *testing.T, d digest.Digest) reference.Named {
	t.Helper()
	c, err := reference.WithDigest(reference.TrimNamed(named(t, ref)), d)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestLookUp checks the answers and the requests of a lookup.
func TestLookUp(t *testing.T) {
	const tag = "HEAD /v2/team/app/manifests/1"
	gone := digest.FromString("gone")
	for name, x := range map[string]struct {
		of         digest.Digest // empty for the tag
		status     int           // of each answer; 0 is the answer of the registry
		retryAfter string
		want       []string
		check      func(error) bool
		after      time.Duration
	}{
		"tag":            {want: []string{tag}, check: func(err error) bool { return err == nil }},
		"no such tag":    {status: 404, want: []string{tag}, check: errdefs.IsNotFound},
		"no such digest": {of: gone, want: []string{"HEAD /v2/team/app/manifests/" + gone.String(), "HEAD /v2/team/app/blobs/" + gone.String()}, check: errdefs.IsNotFound},
		"429":            {status: 429, want: []string{tag}, check: Unavailable},
		"429 for a time": {status: 429, retryAfter: "90", want: []string{tag}, check: Unavailable, after: 90 * time.Second},
		"503 for a time": {status: 503, retryAfter: "7", want: []string{tag}, check: Unavailable, after: 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t)
			r.answer = func(w http.ResponseWriter, _ *http.Request) bool {
				if x.status != 0 {
					if x.retryAfter != "" {
						w.Header().Set("Retry-After", x.retryAfter)
					}
					w.WriteHeader(x.status)
				}
				return x.status != 0
			}
			of := named(t, ref)
			if x.of != "" {
				of = canonical(t, x.of)
			}
			got, err := newResolver(t, server(r)).LookUp(quiet(t), of)
			if !x.check(err) || err == nil && got != r.root.Digest {
				t.Errorf("got %s, %v", got, err)
			}
			if seen := r.seen(); !slices.Equal(seen, x.want) {
				t.Errorf("sent %v, want %v", seen, x.want)
			}
			var busy *Busy
			if is := errors.As(err, &busy); is != (isBusy(x.status)) || is && busy.RetryAfter != x.after {
				t.Errorf("got %#v", err)
			}
			var known *imagepin.Error
			if err != nil && !errors.As(err, &known) {
				t.Errorf("got %v, want an error with a reason", err)
			}
		})
	}
}

// TestLookUpAtOrigin does not ask a mirror for a tag, which may be stale.
func TestLookUpAtOrigin(t *testing.T) {
	mirror, origin := newRegistry(t), newRegistry(t)
	stale(mirror)
	r := newResolver(t, mirrors(mirror, origin))
	for what, c := range map[string]struct {
		ask  func(context.Context, reference.Named) (digest.Digest, error)
		want digest.Digest
	}{"hosts": {r.LookUp, mirror.root.Digest}, "origin": {r.LookUpAtOrigin, origin.root.Digest}} {
		if got, err := c.ask(quiet(t), named(t, ref)); got != c.want || err != nil {
			t.Errorf("%s: got %s, %v, want %s", what, got, err, c.want)
		}
	}
	if n := len(mirror.seen()); n != 1 {
		t.Errorf("the mirror got %d requests, want one", n)
	}
}
