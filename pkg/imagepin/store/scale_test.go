package store_test

import (
	. "github.com/imagepin/imagepin/pkg/imagepin/store"

	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// calls counts the calls of a start to containerd's stores. Methods that are not counted panic because the embedded
// stores are nil.
type calls struct {
	lists, contentWalks, snapshotWalks, writes, single int
}

type countedContent struct {
	content.Store // nil
	real          content.Store
	n             *calls
	checks        *sync.Map // *atomic.Int32 by digest, because files are checked concurrently
}

// Check implements blobs.Checker.
func (c countedContent) Check(ctx context.Context, d digest.Digest, size int64) error {
	n, _ := c.checks.LoadOrStore(d, new(atomic.Int32))
	n.(*atomic.Int32).Add(1)
	return blobs.Check(ctx, c.real, d, size)
}

func (c countedContent) Walk(ctx context.Context, fn content.WalkFunc, filters ...string) error {
	c.n.contentWalks++
	return c.real.Walk(ctx, fn, filters...)
}

type countedSnapshots struct {
	snapshots.Snapshotter // nil
	real                  snapshots.Snapshotter
	walks                 *atomic.Int32 // atomic because snapshotters are walked concurrently
}

func (s countedSnapshots) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	s.walks.Add(1)
	return s.real.Walk(ctx, fn, filters...)
}

// counted returns a new store whose calls to containerd's stores are counted.
func (e *env) counted(n *calls, walks *atomic.Int32, checks *sync.Map) *Store {
	e.restart()
	c := *e.store.Configuration()
	c.Records = ctdtest.Records{Store: ctdtest.Images{Store: c.Records, Before: func(_ context.Context, call ctdtest.Call) error {
		switch call.Method {
		case "List":
			n.lists++
		case "Get":
			n.single++
		}
		return nil
	}}}
	c.Content = countedContent{real: e.Content, n: n, checks: checks}
	of := map[string]snapshots.Snapshotter{}
	for _, name := range c.Runtimes().Snapshotters() {
		of[name] = countedSnapshots{real: e.Snapshotter(name), walks: walks}
	}
	c.Snapshotter = func(name string) snapshots.Snapshotter { return of[name] }
	return New(c)
}

// fill pulls images of the node's platform, alternately for two snapshotters. No images share a layer.
func (e *env) fill(t testing.TB, count int) {
	t.Helper()
	ctx, done := e.Lease(t)
	for i := range count {
		e.blobs = ctdtest.Blobs{}
		img := e.image(fmt.Sprint("image ", i))
		target := []runtimeplatform.Target{native, nativeToo}[i%2]
		e.place(ctx, t, img, target)
		if _, err := e.store.Put(e.ctx, "", entries(fmt.Sprintf("registry.example/team/app%d:1", i), img, target, i)...); err != nil {
			t.Fatal(err)
		}
	}
	done()
}

// TestStartCallsDoNotGrowWithImages checks that a start without lost keys writes nothing, and that its number of calls
// does not depend on the number of images, except for one check of the file of each blob that is not a layer.
func TestStartCallsDoNotGrowWithImages(t *testing.T) {
	t.Parallel()
	for _, count := range []int{1, 50} {
		e := newEnv(t)
		e.fill(t, count)
		var (
			n      calls
			walks  atomic.Int32
			checks sync.Map
		)
		e.Collect(t) // frees the content of other platforms
		s := e.counted(&n, &walks, &checks)
		loaded, err := load(e.ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.ReleaseOrphans(e.ctx, loaded.Have.Unpacked(), loaded.entries()...); err != nil {
			t.Fatal(err)
		}
		if got := len(s.Images()); got != count || len(loaded.Lost) > 0 || len(loaded.Unaccounted) > 0 {
			t.Errorf("%d images: got %d loaded, %d lost, %d unaccounted", count, got, len(loaded.Lost), len(loaded.Unaccounted))
		}
		n.writes, n.snapshotWalks = e.records.writes, int(walks.Load())
		if want := (calls{lists: 1, contentWalks: 1, snapshotWalks: len(e.store.Configuration().Runtimes().Snapshotters())}); n != want {
			t.Errorf("%d images: got calls %+v, want %+v", count, n, want)
		}
		files := 0
		checks.Range(func(d, times any) bool {
			if files++; times.(*atomic.Int32).Load() != 1 {
				t.Errorf("checked the file of %s %d times, want 1", d, times.(*atomic.Int32).Load())
			}
			return true
		})
		if want := 3 * count; files != want { // index, manifest, configuration
			t.Errorf("%d images: checked %d files, want %d", count, files, want)
		}
	}
}
