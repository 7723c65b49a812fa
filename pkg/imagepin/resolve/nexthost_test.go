package resolve

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// wrongBodies are bodies of a mirror that are not the blob. Each reports whether bytes of it are a part of what a fetch
// returns, and how many requests the mirror gets.
var wrongBodies = map[string]struct {
	answer   func(w http.ResponseWriter, req *http.Request, content []byte)
	mixed    bool
	requests int
}{
	"empty": {func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.Header().Set("Content-Length", "0") }, false, 1},
	"empty without a length": {func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		_ = http.NewResponseController(w).Flush()
	}, false, 1},
	"a web page": {func(w http.ResponseWriter, _ *http.Request, _ []byte) { _, _ = w.Write([]byte("<html>")) }, false, 1},
	"shorter without a length": {func(w http.ResponseWriter, _ *http.Request, content []byte) {
		_, _ = w.Write(content[:100])
		_ = http.NewResponseController(w).Flush()
	}, true, 1},
	"cut": {func(w http.ResponseWriter, req *http.Request, content []byte) {
		if req.Header.Get("Range") != "" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write(content[:100])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, true, 2},
	"longer": {func(w http.ResponseWriter, _ *http.Request, content []byte) {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)+1))
		_, _ = w.Write(append(bytes.Clone(content), 'x'))
	}, false, 1},
	"longer without a length": {func(w http.ResponseWriter, _ *http.Request, content []byte) {
		_ = http.NewResponseController(w).Flush()
		_, _ = w.Write(append(bytes.Clone(content), 'x'))
	}, true, 1},
}

// TestNextHost fetches a blob from a mirror whose body is wrong. The registry has the rest.
func TestNextHost(t *testing.T) {
	for name, c := range wrongBodies {
		t.Run(name, func(t *testing.T) {
			mirror, origin := newRegistry(t), newRegistry(t)
			layer := origin.image.Layer
			content := origin.blobs[layer.Digest]
			mirror.answer = func(w http.ResponseWriter, req *http.Request) bool {
				c.answer(w, req, content)
				return true
			}
			s := newResolver(t, mirrors(mirror, origin)).Session(named(t, ref), Credential{})
			f, err := s.Fetcher(quiet(t))
			if err != nil {
				t.Fatal(err)
			}
			got, err := fetch(quiet(t), f, layer)
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("got %d bytes, %v, want %d", len(got), err, len(content))
			}
			if m, o := len(mirror.seen()), len(origin.seen()); m != c.requests || o != 1 {
				t.Errorf("got %d requests to the mirror and %d to the registry, want %d and 1", m, o, c.requests)
			}
			// If the beginning was wrong, the blob is fetched again from the registry.
			if s.Otherwise(layer.Digest) != c.mixed || s.Otherwise(layer.Digest) {
				t.Errorf("is there another way: want %t, and false after it", c.mixed)
			}
			if _, err := fetch(quiet(t), f, layer); err != nil || c.mixed && len(mirror.seen()) != 0 {
				t.Errorf("got %v, want no request to the mirror", err)
			}
		})
	}
}

// TestNextHostAfterWrongDigest fetches a blob again whose digest was wrong, from each host in turn.
func TestNextHostAfterWrongDigest(t *testing.T) {
	all := []*registry{newRegistry(t), newRegistry(t), newRegistry(t)}
	layer := all[0].image.Layer
	s := newResolver(t, mirrors(all...)).Session(named(t, ref), Credential{})
	f, err := s.Fetcher(quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if _, err := fetch(quiet(t), f, layer); err != nil {
			t.Fatal(err)
		}
		var asked []int
		for j, r := range all {
			if len(r.seen()) > 0 {
				asked = append(asked, j)
			}
		}
		if want := []int{i}; !slices.Equal(asked, want) {
			t.Errorf("hosts %v were asked, want %v", asked, want)
		}
		if other, want := s.Otherwise(layer.Digest), i < len(all)-1; other != want {
			t.Errorf("after host %d: is there another way: got %t", i, other)
		}
	}
	if s.Otherwise(all[0].image.Config.Digest) {
		t.Error("there is another way to fetch a blob that was not fetched")
	}
}

// TestResumedElsewhere continues a blob whose beginning is on the disk. If the digest is wrong, it is fetched again once, and not if all
// of it was fetched meanwhile.
func TestResumedElsewhere(t *testing.T) {
	a := newRegistry(t)
	s := newResolver(t, server(a)).Session(named(t, ref), Credential{})
	rc := openBlob(t, quiet(t), s, a.image.Layer)
	defer func() { _ = rc.Close() }()
	if _, err := rc.(io.Seeker).Seek(10, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, rc); err != nil {
		t.Fatal(err)
	}
	if !s.Otherwise(a.image.Layer.Digest) || s.Otherwise(a.image.Layer.Digest) {
		t.Error("want another way once")
	}
	for _, offset := range []int64{10, 0} {
		if _, err := rc.(io.Seeker).Seek(offset, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, rc); err != nil {
			t.Fatal(err)
		}
	}
	if s.Otherwise(a.image.Layer.Digest) {
		t.Error("there is another way to fetch a blob that the only host has sent")
	}
}

// TestMirrorWithoutContent asks a mirror that answers 404, and a registry that is unavailable. The error names the hosts and
// says why, for a tag and for a blob.
func TestMirrorWithoutContent(t *testing.T) {
	for name, c := range map[string]struct {
		down func(*registry)
		want string
	}{
		"unreachable": {func(r *registry) { r.Close() }, " did not answer: dial tcp "},
		"503":         {func(r *registry) { r.answer = status(503) }, " answered 503 Service Unavailable"},
		"token service": {func(r *registry) {
			withTokens(t, r, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
		}, " (the token service of "},
	} {
		t.Run(name, func(t *testing.T) {
			mirror, origin := newRegistry(t), newRegistry(t)
			mirror.answer = status(404)
			c.down(origin)
			r := newResolver(t, mirrors(mirror, origin))
			_, resolved := r.Resolve(quiet(t), named(t, ref), Credential{})
			f, err := r.Session(named(t, ref), Credential{}).Fetcher(quiet(t))
			if err != nil {
				t.Fatal(err)
			}
			_, fetched := fetch(quiet(t), f, origin.image.Layer)
			for what, err := range map[string]error{"tag": resolved, "blob": fetched} {
				var e *imagepin.Error
				if !errors.As(err, &e) || !errors.Is(e.Class, errdefs.ErrUnavailable) || !MayBeGone(err) || errdefs.IsNotFound(err) {
					t.Errorf("%s: got %v, want an Unavailable error for content that may be gone", what, err)
					continue
				}
				for _, want := range []string{hostOf(mirror), " answered 404 Not Found; ", hostOf(origin), c.want} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s: got %v, want %q", what, err, want)
					}
				}
			}
			if MayBeGone(errdefs.ErrNotFound) {
				t.Error("NotFound is final")
			}
		})
	}
}
