package store_test

import (
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// importAs records an image as imported, as an apply of a bundle does.
func (e *env) importAs(t *testing.T, ref string, i image, target runtimeplatform.Target) {
	t.Helper()
	ctx, done := e.Lease(t)
	e.place(ctx, t, i, target)
	all := entries(ref, i, target, 0)
	for n := range all {
		all[n].Source = imagepin.SourceImported
	}
	if _, err := e.store.Put(e.ctx, "", all...); err != nil {
		t.Fatal(err)
	}
	done()
	e.Collect(t)
}

// sources returns the sources of a repository's keys, as "target reference source".
func (e *env) sources(repository string) (all []string) {
	for _, img := range e.store.Images() {
		for _, k := range img.Entries {
			if imagepin.InRepository(k.Ref, repository) {
				all = append(all, string(k.Source))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestPullEndsImported checks that one answer of a registry ends what an import allows, for all targets and tags of the repository,
// whether or not the writes are atomic, and that this outlives the key of that answer.
func TestPullEndsImported(t *testing.T) {
	const other = "registry.example/other/app:1"
	pulled, imported := []string{string(imagepin.SourcePull)}, []string{string(imagepin.SourceImported)}
	for allow := -1; allow < 12; allow++ {
		e := newEnv(t)
		a := e.image("a")
		for _, target := range []runtimeplatform.Target{native, nativeToo, foreign} {
			e.importAs(t, tag, a, target)
		}
		e.importAs(t, repo+":2", a, native)
		e.importAs(t, other, a, native)
		wantEqual(t, "imported", e.sources(repo), imported)
		e.records.allow = allow
		again := entries(tag, a, native, 1)
		_, err := e.store.Put(e.ctx, "proof", again...)
		e.records.allow = -1
		if err != nil {
			e.restart()
			e.load(t)
			if ok, err := e.store.Recorded(e.ctx, "proof", again...); ok || err != nil {
				t.Errorf("after a kill before write %d, the next pull has nothing to write: %v", allow, err)
			}
			if _, err := e.store.Put(e.ctx, "proof", again...); err != nil {
				t.Fatal(err)
			}
		} else if allow >= 0 {
			break // it had fewer writes
		}
		wantEqual(t, "after a pull", e.sources(repo), pulled)
		wantEqual(t, "in another repository", e.sources("registry.example/other/app"), imported)
		writes := e.records.writes
		if ok, err := e.store.Recorded(e.ctx, "proof", again...); !ok || err != nil {
			t.Errorf("a second pull has something to write: %v", err)
		}
		if _, err := e.store.Put(e.ctx, "proof", again...); err != nil || e.records.writes != writes {
			t.Errorf("a second pull wrote %d times: %v", e.records.writes-writes, err)
		}
		e.restart()
		e.load(t)
		wantEqual(t, "after a restart", e.sources(repo), pulled)
		e.remove(t, keysOf(e.store.ByID(a.amd64.Config.Digest))...)
		wantEqual(t, "the image of the other platform", e.sources(repo), pulled)
		e.importAs(t, tag, a, foreignToo)
		wantEqual(t, "imported for another target after the pull", e.sources(repo), pulled)
		e.wantSound(t)
	}
}

// TestEndImported ends what an import allows without a pull. It writes nothing the second time, and does not record again what
// another tool has deleted.
func TestEndImported(t *testing.T) {
	e := newEnv(t)
	a := e.image("a")
	e.importAs(t, tag, a, native)
	e.importAs(t, tag, a, foreign)
	named, err := reference.ParseNormalizedNamed(repo)
	if err != nil {
		t.Fatal(err)
	}
	deleted := repo + "@" + a.arm.Manifest.Digest.String()
	if err := e.Images.Delete(e.ctx, deleted, images.SynchronousDelete()); err != nil {
		t.Fatal(err)
	}
	writes := e.records.writes
	for range 2 {
		if err := e.store.EndImported(e.ctx, named, a.root.Digest); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "sources", e.sources(repo), []string{string(imagepin.SourcePull)})
	}
	if n := e.records.writes - writes; n != 1 {
		t.Errorf("%d writes, want 1", n)
	}
	if _, ok := e.Records(t)[deleted]; ok {
		t.Error("a deleted record is back")
	}
}
