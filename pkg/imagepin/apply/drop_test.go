package apply

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
)

// source has images by digest.
type source struct {
	blobs ctdtest.Blobs
	roots map[digest.Digest]ocispec.Descriptor
}

// Resolve implements bundle.Source.
func (s source) Resolve(_ context.Context, ref reference.Named) (ocispec.Descriptor, error) {
	return s.roots[ref.(reference.Canonical).Digest()], nil
}

// Fetch implements bundle.Source.
func (s source) Fetch(_ context.Context, _ reference.Named, d ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(s.blobs[d.Digest][offset:])), nil
}

// droppedEnv is an env with drop directories.
type droppedEnv struct {
	*env
	locks, bundles string
}

func newDropped(t *testing.T) *droppedEnv {
	e := &droppedEnv{env: newEnv(t, handlers...)}
	e.locks, e.bundles = mkdir(t), mkdir(t)
	e.settings = Settings{LocksDirectory: e.locks, BundlesDirectory: e.bundles}
	return e
}

func mkdir(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "drop")
	noError(t, os.Mkdir(dir, 0o755))
	return dir
}

// drop writes a lock to a directory.
func drop(t *testing.T, dir, name string, images ...lock.Image) string {
	t.Helper()
	text, err := lockOf(t, images...).Marshal()
	noError(t, err)
	path := filepath.Join(dir, name)
	noError(t, os.WriteFile(path, text, 0o644))
	return path
}

// dropBundle writes a bundle of one image with one layer.
func (e *droppedEnv) dropBundle(t *testing.T, name, tag, text string) digest.Digest {
	t.Helper()
	blobs := make(ctdtest.Blobs)
	img := blobs.Image("linux/amd64", text, nil)
	root := img.Manifest
	root.Platform = nil
	texts.Store(root.Digest, text)
	i := image(t, tag, text)
	_, err := bundle.Write(t.Context(), filepath.Join(e.bundles, name), bundle.Options{Lock: lockOf(t, withDigest(t, i, root.Digest))}, source{blobs, map[digest.Digest]ocispec.Descriptor{root.Digest: root}})
	noError(t, err)
	return root.Digest
}

func TestDropDirectories(t *testing.T) {
	e := newDropped(t)
	apply := func(again bool) bool {
		t.Helper()
		result, err := e.ApplyDropped(e.ctx, Request{}, again)
		noError(t, err)
		return result.Lock != ""
	}
	if apply(false) {
		t.Error("empty directories were applied")
	}
	if _, err := e.ApplyDropped(e.ctx, Request{}, true); !hasReason(err, imagepin.UnknownLock) {
		t.Errorf("empty directories, which were asked for: got %v", err)
	}
	drop(t, e.locks, "b.yaml", image(t, "app:1", "one", "linux/amd64"))
	drop(t, e.locks, "a.json", image(t, "tool:1", "two", "linux/amd64"), image(t, "app:1", "one", "linux/amd64"))
	drop(t, e.locks, ".new.yaml", image(t, "hidden:1", "h", "linux/amd64"))
	drop(t, e.locks, "c.yaml.swp", image(t, "hidden:2", "h", "linux/amd64"))
	if !apply(false) || e.locked("app:1") != "one" || e.locked("tool:1") != "two" || len(e.Status().Images) != 2 {
		t.Errorf("images %+v", e.Status().Images)
	}
	if got := e.Status().Current.Name; !strings.Contains(got, "2 files") {
		t.Errorf("name %q", got)
	}
	if apply(false) {
		t.Error("the same content was applied twice")
	}
	if !apply(true) {
		t.Error("the same content was not applied again")
	}
	// A rollback survives a restart: the content was applied.
	drop(t, e.locks, "b.yaml", image(t, "app:1", "three", "linux/amd64"))
	noError(t, os.Remove(filepath.Join(e.locks, "a.json")))
	if !apply(false) || e.locked("app:1") != "three" || e.locked("tool:1") != "" || e.Status().Current.Name != "b.yaml" {
		t.Errorf("after a change: %+v", e.Status().Current)
	}
	_, err := e.Rollback(e.ctx, Request{})
	noError(t, err)
	if apply(false) || e.locked("app:1") != "one" {
		t.Error("a rollback was undone")
	}
}

func TestDropRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, e *droppedEnv)
		want    func(error) bool
	}{
		"contradiction": {func(t *testing.T, e *droppedEnv) {
			drop(t, e.locks, "a.yaml", image(t, "app:1", "one"))
			drop(t, e.locks, "b.yaml", image(t, "app:1", "two"))
		}, func(err error) bool {
			return hasReason(err, imagepin.InvalidLock) && strings.Contains(err.Error(), "two digests")
		}},
		"no lock": {func(t *testing.T, e *droppedEnv) {
			noError(t, os.WriteFile(filepath.Join(e.locks, "a.yaml"), []byte("kind: List"), 0o644))
		}, func(err error) bool {
			return hasReason(err, imagepin.InvalidLock) && strings.Contains(err.Error(), "a.yaml")
		}},
		"no bundle": {func(t *testing.T, e *droppedEnv) {
			noError(t, os.WriteFile(filepath.Join(e.bundles, "a.tar"), []byte("x"), 0o644))
		}, func(err error) bool { return hasReason(err, imagepin.InvalidBundle) }},
		"a file that others can write": {func(t *testing.T, e *droppedEnv) {
			noError(t, os.Chmod(drop(t, e.locks, "a.yaml", image(t, "app:1", "one")), 0o666))
		}, errdefs.IsInvalidArgument},
		"a directory that others can write": {func(t *testing.T, e *droppedEnv) {
			drop(t, e.locks, "a.yaml", image(t, "app:1", "one"))
			noError(t, os.Chmod(e.locks, 0o777))
		}, errdefs.IsInvalidArgument},
		"a file of another user": {func(t *testing.T, e *droppedEnv) {
			noError(t, os.Chown(drop(t, e.locks, "a.yaml", image(t, "app:1", "one")), 1234, 0))
		}, errdefs.IsInvalidArgument},
		"a link to a file of another user": {func(t *testing.T, e *droppedEnv) {
			path := drop(t, t.TempDir(), "a.yaml", image(t, "app:1", "one"))
			noError(t, os.Chown(path, 1234, 0))
			noError(t, os.Symlink(path, filepath.Join(e.locks, "a.yaml")))
		}, errdefs.IsInvalidArgument},
		"a bundle without an image of the locks": {func(t *testing.T, e *droppedEnv) {
			d := e.dropBundle(t, "a.tar", "app:1", "one")
			i := image(t, "app:1", "one")
			drop(t, e.locks, "a.yaml", withDigest(t, i, d), image(t, "tool:1", "two"))
		}, func(err error) bool { return hasReason(err, imagepin.NotInBundle) }},
	} {
		t.Run(name, func(t *testing.T) {
			e := newDropped(t)
			c.prepare(t, e)
			result, err := e.ApplyDropped(e.ctx, Request{DryRun: true}, false)
			if applied := result.Lock; !c.want(err) || applied != "" || e.Status().Failed != nil {
				t.Fatalf("dry run: got %v, %v, status %+v", applied, err, e.Status().Failed)
			}
			if result, err = e.ApplyDropped(e.ctx, Request{}, false); !c.want(err) || result.Lock != "" || e.Status().Failed == nil {
				t.Errorf("got %v, %v, status %+v", result, err, e.Status().Failed)
			}
		})
	}
}

func withDigest(t *testing.T, i lock.Image, d digest.Digest) lock.Image {
	ref, err := imagepin.ParseReference(i.Ref.Name() + "@" + d.String())
	noError(t, err)
	i.Ref = ref.(reference.Canonical)
	return i
}

// TestDroppedBundles checks which lock is applied, and where the content comes from.
func TestDroppedBundles(t *testing.T) {
	e := newDropped(t)
	e.dropBundle(t, "2026-01.tar", "app:1", "january")
	march := e.dropBundle(t, "2026-03.tar.zst", "app:1", "march")
	e.dropBundle(t, "2026-02.tar", "app:1", "february")
	_, err := e.ApplyDropped(e.ctx, Request{}, false)
	noError(t, err)
	if e.locked("app:1") != "march" || !e.Status().Current.Bundle || e.Status().Current.Name != "2026-03.tar.zst" {
		t.Errorf("lock %+v", e.Status().Current)
	}
	if !e.node.HasBlob(t, march) {
		t.Error("the manifest was not imported")
	}
	for _, l := range e.machine.made {
		if l.From == pull.FromRegistry {
			t.Errorf("%s: a registry is asked", l.Ref)
		}
	}
	// A lock in the other directory decides, and bundles that have none of its images are ignored.
	drop(t, e.locks, "a.yaml", image(t, "tool:1", "two", "linux/amd64"))
	_, err = e.ApplyDropped(e.ctx, Request{}, false)
	if noError(t, err); e.locked("tool:1") != "two" || e.Status().Current.Bundle || e.locked("app:1") != "" {
		t.Errorf("lock %+v", e.Status().Current)
	}
}

// TestDropID checks which changes of the directories are new content.
func TestDropID(t *testing.T) {
	e := newDropped(t)
	id := func() digest.Digest {
		t.Helper()
		d, err := readDropped(e.locks, e.bundles)
		noError(t, err)
		return d.id
	}
	path := drop(t, e.locks, "a.yaml", image(t, "app:1", "one"))
	e.dropBundle(t, "b.tar", "app:1", "one")
	last := id()
	noError(t, os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0))) // the text of a lock counts, not its time
	drop(t, e.locks, ".a.yaml.tmp", image(t, "app:1", "two"))
	noError(t, os.Chtimes(filepath.Join(e.bundles, "b.tar"), time.Unix(1, 0), time.Unix(1, 0))) // the same for a bundle
	if id() != last {
		t.Error("the same content has another ID")
	}
	for _, c := range []struct {
		name   string
		change func() error
	}{
		{"text", func() error { drop(t, e.locks, "a.yaml", image(t, "app:1", "two")); return nil }},
		{"bundle with the same name, size and time", func() error {
			path := filepath.Join(e.bundles, "b.tar")
			before, err := os.Stat(path)
			noError(t, err)
			e.dropBundle(t, "b.tar", "app:1", "two") // as long as "one"
			noError(t, os.Chtimes(path, before.ModTime(), before.ModTime()))
			after, err := os.Stat(path)
			if err == nil && after.Size() != before.Size() {
				t.Errorf("%d bytes, before %d", after.Size(), before.Size())
			}
			return err
		}},
		{"bundle name", func() error { return os.Rename(filepath.Join(e.bundles, "b.tar"), filepath.Join(e.bundles, "c.tar")) }},
	} {
		noError(t, c.change())
		now := id()
		if now == last {
			t.Errorf("%s: the ID is the same", c.name)
		}
		last = now
	}
	if d, err := readDropped("/does/not/exist", ""); err != nil || len(d.locks)+len(d.bundles) != 0 {
		t.Errorf("no directories: %+v, %v", d, err)
	}
}

// TestRunAppliesDropped checks that Run applies the directories at the start, after a registry is available again, and after a
// reload with another directory, and otherwise does not read them again.
func TestRunAppliesDropped(t *testing.T) {
	e := newDropped(t)
	e.inBubble(t, func(t *testing.T) {
		var mu sync.Mutex
		settings := e.settings
		e.config.Settings = func() Settings {
			mu.Lock()
			defer mu.Unlock()
			return settings
		}
		path := drop(t, e.locks, "a.yaml", image(t, "app:1", "one", "linux/amd64"))
		start := time.Now()
		e.machine.make = func(context.Context, pull.Locked) error {
			if time.Since(start) < 10*time.Minute {
				return errdefs.ErrUnavailable
			}
			return nil
		}
		running, stop := context.WithCancel(e.ctx)
		var run sync.WaitGroup
		run.Go(func() { e.Run(running) })
		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		wait(5 * time.Minute)
		if e.locked("app:1") != "" || e.Status().Failed == nil {
			t.Errorf("with a registry that is down: %+v", e.Status())
		}
		wait(15 * time.Minute)
		if e.locked("app:1") != "one" || e.Status().Failed != nil {
			t.Errorf("after the registry is available: %+v", e.Status())
		}
		drop(t, e.locks, "a.yaml", image(t, "app:1", "two", "linux/amd64"))
		wait(time.Hour)
		if e.locked("app:1") != "one" {
			t.Error("a file was applied without a start")
		}
		noError(t, os.WriteFile(path, []byte("kind: List"), 0o644))
		other := mkdir(t)
		drop(t, other, "a.yaml", image(t, "app:1", "three", "linux/amd64"))
		mu.Lock()
		settings.LocksDirectory = other
		mu.Unlock()
		wait(checkPeriod)
		if e.locked("app:1") != "three" {
			t.Errorf("after a reload with another directory: %s", e.locked("app:1"))
		}
		mu.Lock()
		settings.LocksDirectory = e.locks
		mu.Unlock()
		wait(time.Hour)
		if st := e.Status(); st.Failed == nil || e.locked("app:1") != "three" || st.Failed.At.After(time.Now().Add(-50*time.Minute)) {
			t.Errorf("an invalid lock was tried again: %+v", st.Failed)
		}
		stop()
		run.Wait()
	})
}
