package blobs_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// TestWithLocalFiles checks that files are checked directly, and opened through the store only if they are not in the
// expected state.
func TestWithLocalFiles(t *testing.T) {
	n := ctdtest.New(t)
	ctx, done := n.Lease(t)
	defer done()
	all := ctdtest.Blobs{}
	whole, cut, missing, closed := all.Add("", []byte("whole")), all.Add("", []byte("cut")), all.Add("", []byte("missing")), all.Add("", []byte("closed"))
	n.Write(ctx, t, all)
	for _, err := range []error{os.Truncate(n.File(cut.Digest), 1), os.Remove(n.File(missing.Digest)), os.Chmod(n.File(closed.Digest), 0)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(dir string, d digest.Digest, size int64) (opens int, _ error) {
		under := ctdtest.Content{Store: n.Content, Before: ctdtest.On("ReaderAt", func(string) error {
			opens++
			return nil
		})}
		err := blobs.Check(ctx, blobs.WithLocalFiles(func() string { return dir }, under), d, size)
		return opens, err
	}
	if opens, err := check(n.ContentDir(), whole.Digest, whole.Size); err != nil || opens > 0 {
		t.Errorf("intact: %v, opened %d times, want 0", err, opens)
	}
	damage := new(blobs.Damage)
	if opens, err := check(n.ContentDir(), cut.Digest, cut.Size); !errors.As(err, &damage) || damage.Missing || opens != 1 {
		t.Errorf("cut: got %v, opened %d times, want damage, 1", err, opens)
	}
	if opens, err := check(n.ContentDir(), missing.Digest, missing.Size); !errors.As(err, &damage) || !damage.Missing || opens != 1 {
		t.Errorf("missing: got %v, opened %d times, want missing, 1", err, opens)
	}
	if opens, _ := check(n.ContentDir(), closed.Digest, closed.Size); opens != 1 {
		t.Errorf("no permission: opened %d times, want 1", opens)
	}
	for _, dir := range []string{"", t.TempDir()} {
		if opens, err := check(dir, whole.Digest, whole.Size); err != nil || opens != 1 {
			t.Errorf("directory %q: %v, opened %d times, want 1", dir, err, opens)
		}
	}
	if _, err := check(n.ContentDir(), "../../x", 1); err == nil {
		t.Error("an invalid digest: got no error")
	}
}

// TestRemoveNameless starts after a power cut that has destroyed the names of writes. A write that has just begun has none yet.
func TestRemoveNameless(t *testing.T) {
	n := ctdtest.New(t)
	ctx, done := n.Lease(t)
	defer done()
	for _, name := range []string{"whole", "gone", "empty", "zero", "new"} {
		w, err := n.Content.Writer(ctx, content.WithRef(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	dirs := make(map[string]string) // by the name of the write
	refs, err := filepath.Glob(filepath.Join(n.ContentDir(), "ingest", "*", "ref"))
	if err != nil || len(refs) != 5 {
		t.Fatalf("got %v, %v", refs, err)
	}
	for _, path := range refs {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name, dir := filepath.Base(string(b)), filepath.Dir(path)
		dirs[name] = dir
		switch name {
		case "gone", "new":
			err = os.Remove(path)
		case "empty":
			err = os.Truncate(path, 0)
		case "zero":
			err = os.WriteFile(path, make([]byte, len(b)), 0o600)
		}
		if name != "new" {
			hourAgo := time.Now().Add(-time.Hour)
			err = errors.Join(err, os.Chtimes(dir, hourAgo, hourAgo))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	store := blobs.WithLocalFiles(n.ContentDir, n.Content).(blobs.Cleaner)
	if err := store.RemoveNameless(ctx, time.Now().Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"whole": true, "gone": false, "empty": false, "zero": false, "new": true} {
		if _, err := os.Stat(dirs[name]); (err == nil) != want {
			t.Errorf("%s: got %v, want that it exists: %t", name, err, want)
		}
	}
	if err := blobs.WithLocalFiles(func() string { return "" }, n.Content).(blobs.Cleaner).RemoveNameless(ctx, time.Now()); err != nil {
		t.Errorf("without a directory: %v", err)
	}
}

// TestOpenWrite opens what is written under a name, in one namespace.
func TestOpenWrite(t *testing.T) {
	n := ctdtest.New(t)
	for _, ns := range []string{ctdtest.Namespace, "other"} {
		ctx := n.InNamespace(t, ns)
		w, err := n.DB.ContentStore().Writer(ctx, content.WithRef("registry.example/app@registry.example/layer"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(ns)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	store := blobs.WithLocalFiles(n.ContentDir, n.Content).(blobs.Opener)
	for _, ns := range []string{ctdtest.Namespace, "other"} {
		f, err := store.OpenWrite(n.InNamespace(t, ns), "registry.example/app@registry.example/layer")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		if err := errors.Join(err, f.Close()); err != nil || string(b) != ns {
			t.Errorf("got %q, %v, want %q", b, err, ns)
		}
	}
	if _, err := store.OpenWrite(n.Context(t), "layer"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want that it does not exist", err)
	}
}

// TestReadFile checks that only a file that matches its digest is read without the store.
func TestReadFile(t *testing.T) {
	n := ctdtest.New(t)
	ctx, done := n.Lease(t)
	defer done()
	all := ctdtest.Blobs{}
	whole, cut, other, missing := all.Add("", []byte("whole")), all.Add("", []byte("cut")), all.Add("", []byte("other")), all.Add("", []byte("missing"))
	n.Write(ctx, t, all)
	for _, err := range []error{os.Truncate(n.File(cut.Digest), 1), os.Chmod(n.File(other.Digest), 0o644), os.WriteFile(n.File(other.Digest), []byte("OTHER"), 0o644), os.Remove(n.File(missing.Digest))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	local := blobs.WithLocalFiles(func() string { return n.ContentDir() }, n.Content)
	if b, ok := blobs.ReadFile(local, whole.Digest, whole.Size); !ok || string(b) != "whole" {
		t.Errorf("got %q, %t, want the blob", b, ok)
	}
	for what, d := range map[string]digest.Digest{"cut": cut.Digest, "changed": other.Digest, "missing": missing.Digest, "no digest": "../../x"} {
		if b, ok := blobs.ReadFile(local, d, int64(len("other"))); ok {
			t.Errorf("%s: got %q", what, b)
		}
	}
	if b, ok := blobs.ReadFile(local, whole.Digest, whole.Size-1); ok {
		t.Errorf("another size: got %q", b)
	}
	for what, store := range map[string]content.Store{"another store": n.Content, "no directory": blobs.WithLocalFiles(func() string { return "" }, n.Content)} {
		if b, ok := blobs.ReadFile(store, whole.Digest, whole.Size); ok {
			t.Errorf("%s: got %q", what, b)
		}
	}
}
