//go:build unix

package verifier

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/imageverifier/bindir"
)

// binaries is a directory of image verifiers.
type binaries struct {
	*BinDir
	t *testing.T
}

func newBinaries(t *testing.T, limit int) *binaries {
	t.Helper()
	return &binaries{NewBinDir(nil, bindir.Config{BinDir: filepath.Join(t.TempDir(), "bin"), MaxVerifiers: limit}), t}
}

func (b *binaries) path(name string) string { return filepath.Join(b.dir, name) }

func (b *binaries) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// write writes a binary, and sets its modification time.
func (b *binaries) write(name, text string, modified time.Time) {
	b.t.Helper()
	b.must(os.MkdirAll(b.dir, 0o755))
	b.must(os.WriteFile(b.path(name), []byte(text), 0o755))
	b.must(os.Chtimes(b.path(name), modified, modified))
}

func (b *binaries) version() string {
	b.t.Helper()
	v, err := b.Version(b.t.Context())
	b.must(err)
	return v
}

var then = time.Date(2026, 11, 28, 10, 0, 0, 0, time.UTC)

// TestVersion changes the binaries of a verifier in each way.
func TestVersion(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b *binaries)
		same   bool
	}{
		"nothing":               {func(*binaries) {}, true},
		"content, in its place": {func(b *binaries) { b.write("a", "two", then) }, false},
		"content, another file": {func(b *binaries) {
			b.write(".new", "two", then)
			b.must(os.Rename(b.path(".new"), b.path("a")))
		}, false},
		"the same again":        {func(b *binaries) { b.write("a", "one", then) }, true},
		"touched":               {func(b *binaries) { b.write("a", "one", then.Add(time.Nanosecond)) }, false},
		"mode":                  {func(b *binaries) { b.must(os.Chmod(b.path("a"), 0o700)) }, false},
		"renamed":               {func(b *binaries) { b.must(os.Rename(b.path("a"), b.path("b"))) }, false},
		"one more":              {func(b *binaries) { b.write("c", "one", then) }, false},
		"one more than are run": {func(b *binaries) { b.write("z", "one", then) }, true},
		"removed":               {func(b *binaries) { b.must(os.Remove(b.path("a"))) }, false},
		"all removed":           {func(b *binaries) { b.must(os.RemoveAll(b.dir)) }, false},
		"where a link leads": {func(b *binaries) {
			b.must(os.WriteFile(filepath.Join(b.dir, "../target"), []byte("two"), 0o755))
			b.must(os.Chtimes(filepath.Join(b.dir, "../target"), then, then))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBinaries(t, 3)
			b.write("a", "one", then)
			b.must(os.WriteFile(filepath.Join(b.dir, "../target"), []byte("one"), 0o755))
			b.must(os.Chtimes(filepath.Join(b.dir, "../target"), then, then))
			b.must(os.Symlink("../target", b.path("link")))
			b.write("x", "one", then)
			before := b.version()
			c.change(b)
			if after := b.version(); (after == before) != c.same {
				t.Errorf("got version %s, before %s", after, before)
			}
		})
	}
}

// TestVersionOfNone has a version for a directory that does not exist, and another one for a verifier in it.
func TestVersionOfNone(t *testing.T) {
	b := newBinaries(t, -1)
	none := b.version()
	if b.version() != none || none == "" {
		t.Errorf("got %q and %q", none, b.version())
	}
	b.write("a", "one", then)
	if b.version() == none {
		t.Error("a verifier in the directory does not change the version")
	}
}

// TestBinariesAreReadOnce reads a binary again only while its last change is recent, and when it has changed.
func TestBinariesAreReadOnce(t *testing.T) {
	b := newBinaries(t, -1)
	b.write("a", "one", then)
	info, err := os.Stat(b.path("a"))
	b.must(err)
	state, changed := stateOf(info)
	if state == (fileState{}) {
		return // this system has no state
	}
	isRead := func(what string, want bool) {
		t.Helper()
		right := b.version()
		c := b.files["a"]
		c.digest[0]++ // which a read corrects
		b.files = map[string]content{"a": c}
		if got := b.version() == right; got != want {
			t.Errorf("%s: the binary is read again: %v, want %v", what, got, want)
		}
	}
	b.now = func() time.Time { return changed.Add(settled - 1) }
	isRead("just changed", true)
	b.now = func() time.Time { return changed.Add(settled) }
	isRead("a while ago", false)

	before := b.version()
	b.write(".new", "one", then)
	b.must(os.Rename(b.path(".new"), b.path("a")))
	if b.version() == before {
		t.Error("another file with this name is not read")
	}
}

// TestVersionFails fails for what is no binary, and for a call that has ended.
func TestVersionFails(t *testing.T) {
	b := newBinaries(t, -1)
	b.write("a", "one", then)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Version(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the call has ended", err)
	}
	b.must(syscall.Mkfifo(b.path("fifo"), 0o755))
	if v, err := b.Version(t.Context()); err == nil {
		t.Errorf("a pipe: got version %s", v)
	}
	b.must(os.Remove(b.path("fifo")))
	b.must(os.Symlink("nowhere", b.path("link")))
	if _, err := b.Version(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link to nothing: got %v", err)
	}
}
