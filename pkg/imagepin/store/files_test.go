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

// damages are changes to the file of a blob that keep containerd's record of it.
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

// A key with a missing or damaged file is not ready after a start, and a check finds it. A key with a damaged layer
// file is ready, and a check finds the layer.
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

				r, err := newChecker(e.store).Check(e.ctx)
				noError(t, err)
				if what == "layer" {
					wantFindings(t, r, "layer "+of(a).String(), lost[1:])
					e.restart()
					wantEqual(t, "unexplained", e.load(t), nil)
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

// wantLost checks that a start reports keys as lost because of a blob, and drops them.
func (e *env) wantLost(t *testing.T, about digest.Digest, keys []imagepin.Key) {
	t.Helper()
	loaded, err := e.loadFor(e.ctx)
	noError(t, err)
	if len(loaded.Lost) != len(keys) {
		t.Errorf("%d keys are lost", len(loaded.Lost))
	}
	for _, l := range loaded.Lost {
		if l.Unpackable || l.Unknown || !slices.Contains(keys, l.Entry.Key) || !strings.Contains(l.Reason, about.String()) {
			t.Errorf("%+v", l)
		}
		if present, err := e.store.Present(e.ctx, l.Entry); err != nil || present {
			t.Errorf("present: %v, %v", present, err)
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
			t.Errorf("%s: %s", f.Subject, f.Problem)
		}
	}
	slices.Sort(found)
	if want := texts(keys...); !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
}

// A blob that is being replaced is not lost while it has no record. It is lost if it does not exist afterwards.
func TestReplacing(t *testing.T) {
	e := newEnv(t)
	a := e.image("a")
	e.pull(t, tag, a, native, 1, "")
	config := a.amd64.Config.Digest
	done := e.store.BeginReplace(config)
	e.deleteBlob(t, config)
	if lost, err := e.store.EvictBlob(e.ctx, config); err != nil || len(lost) > 0 || len(e.keys()) != 2 {
		t.Errorf("%+v, %v, keys %q", lost, err, e.keys())
	}
	noError(t, done(e.ctx))
	wantEqual(t, "keys", e.keys(), nil)
}
