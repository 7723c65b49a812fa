package store_test

import (
	"github.com/imagepin/imagepin/pkg/imagepin/health"

	"os"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// damages are changes to the file of a blob that containerd's metadata does not show.
var damages = map[string]func(t *testing.T, path string){
	"gone": func(t *testing.T, path string) { noError(t, os.Remove(path)) },
	"cut": func(t *testing.T, path string) {
		noError(t, os.Chmod(path, 0o600))
		noError(t, os.Truncate(path, 1))
	},
	"longer": func(t *testing.T, path string) {
		noError(t, os.Chmod(path, 0o600))
		noError(t, os.Truncate(path, 1<<20))
	},
	"a directory": func(t *testing.T, path string) {
		noError(t, os.Remove(path))
		noError(t, os.Mkdir(path, 0o700))
	},
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestFilesOfBlobs checks that a key with a damaged file is not ready after a start, except for a layer, and that a
// check finds the file.
func TestFilesOfBlobs(t *testing.T) {
	for damage, do := range damages {
		for what, of := range map[string]func(image) digest.Digest{
			"index":         func(i image) digest.Digest { return i.root.Digest },
			"manifest":      func(i image) digest.Digest { return i.amd64.Manifest.Digest },
			"configuration": func(i image) digest.Digest { return i.amd64.Config.Digest },
			"layer":         func(i image) digest.Digest { return i.amd64.Layer.Digest },
		} {
			t.Run(what+" "+damage, func(t *testing.T) {
				e := newEnv(t)
				a, b := e.image("a"), e.image("b")
				e.pull(t, tag, a, native, 1, "")
				e.pull(t, repo+":b", b, native, 2, "")
				do(t, e.File(of(a)))
				lost, stay := keysOf(entries(tag, a, native, 1)), keysOf(entries(repo+":b", b, native, 2))

				r, err := newChecker(e.store).Check(e.ctx, nil)
				noError(t, err)
				if what == "layer" {
					wantFindings(t, r, "layer "+of(a).String(), lost[1:])
					e.restart()
					wantEqual(t, "unaccounted records", e.load(t), nil)
					wantEqual(t, "keys", e.keys(), texts(slices.Concat(lost, stay)...))
					return
				}
				wantFindings(t, r, of(a).String(), lost)
				e.restart()
				e.wantLost(t, of(a), lost)
				wantEqual(t, "keys", e.keys(), texts(stay...))
				e.wantRecords(t, map[string]digest.Digest{
					repo + ":b": b.root.Digest, repo + "@" + b.root.Digest.String(): b.root.Digest, b.amd64.Config.Digest.String(): b.root.Digest,
				})
			})
		}
	}
}

// wantLost checks that a start reports keys as lost because of a blob, and drops these keys.
func (e *env) wantLost(t *testing.T, about digest.Digest, keys []imagepin.Key) {
	t.Helper()
	loaded, err := e.loadFor(e.ctx)
	noError(t, err)
	if len(loaded.Lost) != len(keys) {
		t.Errorf("got %d lost keys, want %d", len(loaded.Lost), len(keys))
	}
	for _, l := range loaded.Lost {
		if l.Unpackable || l.Unknown || !slices.Contains(keys, l.Entry.Key) || !strings.Contains(l.Reason, about.String()) {
			t.Errorf("unexpected loss %+v", l)
		}
		if present, err := e.store.Present(e.ctx, l.Entry); err != nil || present {
			t.Errorf("content of a lost key: present %v, %v, want false", present, err)
		}
		noError(t, e.store.Drop(e.ctx, l.Entry))
	}
}

// wantFindings checks that a report has one finding about a blob for each key.
func wantFindings(t *testing.T, r health.Report, about string, keys []imagepin.Key) {
	t.Helper()
	var found []string
	for _, f := range r.Findings {
		found = append(found, f.Subject)
		if !strings.Contains(f.Problem, about) {
			t.Errorf("%s: got problem %q, want it to name %q", f.Subject, f.Problem, about)
		}
	}
	slices.Sort(found)
	if want := texts(keys...); !slices.Equal(found, want) {
		t.Errorf("got findings about %q, want %q", found, want)
	}
}

// TestReplacing checks that a key is not lost while its blob is being replaced, and is lost if the blob does not exist
// afterwards.
func TestReplacing(t *testing.T) {
	e := newEnv(t)
	a := e.image("a")
	e.pull(t, tag, a, native, 1, "")
	config := a.amd64.Config.Digest
	done := e.store.BeginReplace(config)
	e.deleteBlob(t, config)
	if lost, err := e.store.EvictBlob(e.ctx, config); err != nil || len(lost) > 0 || len(e.keys()) != 2 {
		t.Errorf("while replacing: lost %+v, %v, keys %q, want 2 keys", lost, err, e.keys())
	}
	noError(t, done(e.ctx))
	wantEqual(t, "keys", e.keys(), nil)
}
