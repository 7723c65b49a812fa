package durable

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
)

// counting counts the views of a snapshotter.
type counting struct {
	snapshots.Snapshotter
	views int
}

func (c *counting) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	c.views++
	return c.Snapshotter.View(ctx, key, parent, opts...)
}

func snapshotters(t *testing.T, root string) map[string]func() (*counting, string) {
	open := func(name string, sn snapshots.Snapshotter, err error) (*counting, string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sn.Close() })
		return &counting{Snapshotter: sn}, filepath.Join(root, name)
	}
	return map[string]func() (*counting, string){
		"native": func() (*counting, string) {
			sn, err := native.NewSnapshotter(filepath.Join(root, "native"))
			return open("native", sn, err)
		},
		"overlayfs": func() (*counting, string) {
			sn, err := overlay.NewSnapshotter(filepath.Join(root, "overlayfs"))
			return open("overlayfs", sn, err)
		},
	}
}

// unpack makes a chain of snapshots as containerd's unpacker does, one after the other, or in parallel and rebased.
func unpack(ctx context.Context, t *testing.T, sn snapshots.Snapshotter, parallel bool, names ...string) {
	t.Helper()
	for i, name := range names {
		var parent string
		var opts []snapshots.Opt
		if i > 0 {
			parent = names[i-1]
		}
		if parallel && i > 0 {
			opts, parent = append(opts, snapshots.WithParent(parent)), ""
		}
		if _, err := sn.Prepare(ctx, "extract-"+name, parent); err != nil {
			t.Fatal(err)
		}
		if err := sn.Commit(ctx, name, "extract-"+name, opts...); err != nil {
			t.Fatal(err)
		}
	}
}

func directoriesOf(ctx context.Context, t *testing.T, s *Snapshots, sn snapshots.Snapshotter, top string) []string {
	t.Helper()
	missing, err := s.Missing(ctx, sn, top)
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := s.Directories(ctx, sn, missing)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, dir := range dirs {
		id, err := filepath.Rel(filepath.Join(s.root, "snapshots"), dir.path)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// TestDirectories checks that all directories of a chain are found: without a view if this process has unpacked them, and with views that
// are removed again if another one has.
func TestDirectories(t *testing.T) {
	ctx := namespaces.WithNamespace(t.Context(), "test")
	for name, open := range snapshotters(t, t.TempDir()) {
		t.Run(name, func(t *testing.T) {
			sn, root := open()
			known := New().Snapshots(root + "/")
			begun := make(chan string, 3)
			known.tree = func(path string) *Tree {
				return &Tree{path: path, written: make(chan struct{}), write: func() error {
					begun <- path
					return nil
				}}
			}
			check := func(when string, s *Snapshots, ctx context.Context, top string, views int, want ...string) {
				t.Helper()
				sn.views = 0
				if got := directoriesOf(ctx, t, s, sn, top); !slices.Equal(got, want) || sn.views != views {
					t.Errorf("%s: got %v, %d views, want %v, %d views", when, got, sn.views, want, views)
				}
			}
			unpack(ctx, t, known.Watch(sn), name == "overlayfs", "a", "b", "c")
			check("unpacked here", known, ctx, "c", 0, "1", "2", "3")
			var written []string
			for range 3 {
				written = append(written, filepath.Base(<-begun))
			}
			if slices.Sort(written); !slices.Equal(written, []string{"1", "2", "3"}) {
				t.Errorf("the kernel begins to write %v", written)
			}
			leased := leases.WithLease(ctx, "lease")
			others, views := New().Snapshots(root), 1
			if name == "native" {
				views = 3
			}
			check("unpacked by another process", others, leased, "c", views, "1", "2", "3")
			check("one layer", others, leased, "a", 1, "1")
			missing, err := known.Missing(ctx, sn, "c")
			if err != nil || len(missing) != 3 || !Oldest(missing).Equal(missing[2].Created) {
				t.Fatalf("missing: %+v, %v", missing, err)
			}
			if !known.Known(missing) || others.Known(missing) {
				t.Error("views are needed for what this process has unpacked, or not for others")
			}
			if _, err := others.Directories(ctx, sn, missing); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("without a lease: got %v", err)
			}

			if err := known.SetDurable(missing...); err != nil {
				t.Error(err)
			}
			check("durable", known, ctx, "c", 0)
			if err := sn.Remove(ctx, "c"); err != nil {
				t.Fatal(err)
			}
			unpack(ctx, t, sn, false, "c2")
			if err := sn.Remove(ctx, "c2"); err != nil {
				t.Fatal(err)
			}
			if _, err := sn.Prepare(ctx, "extract", "b"); err != nil {
				t.Fatal(err)
			}
			if err := sn.Commit(ctx, "c", "extract"); err != nil {
				t.Fatal(err)
			}
			if missing, err := known.Missing(ctx, sn, "c"); err != nil || len(missing) != 1 || missing[0].Name != "c" {
				t.Errorf("one of the same name: %+v, %v, want it", missing, err)
			}
			if _, err := known.Missing(ctx, sn, "none"); !errdefs.IsNotFound(err) {
				t.Errorf("no snapshot: got %v", err)
			}
			err = sn.Walk(ctx, func(_ context.Context, i snapshots.Info) error {
				if i.Kind != snapshots.KindCommitted {
					t.Errorf("%s stays", i.Name)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			if len(known.active) != 0 {
				t.Errorf("active %v", known.active)
			}
		})
	}
}

// TestLostSnapshots checks that a snapshot of which the disk has lost a file is never durable, that this is not forgotten when many
// snapshots are known, and that one tree is written after the other.
func TestLostSnapshots(t *testing.T) {
	s, failure := New().Snapshots("/r"), fmt.Errorf("input/output error: %w", errdefs.ErrUnavailable)
	results, begun := make(chan error), make(chan string)
	s.tree = func(path string) *Tree {
		return &Tree{path: path, written: make(chan struct{}), write: func() error {
			begun <- path
			return <-results
		}}
	}
	of := func(name string) snapshots.Info { return snapshots.Info{Name: name, Created: time.Unix(1, 0)} }
	for _, name := range []string{"lost", "gone", "good"} {
		s.committed(of(name), name)
	}
	if err := s.SetDurable(of("lost")); err != nil {
		t.Errorf("nothing is written yet: %v", err)
	}
	s.committed(of("lost"), "lost")
	for _, c := range []struct {
		name   string
		result error
	}{{"lost", nil}, {"gone", fs.ErrNotExist}, {"good", nil}, {"lost", failure}} {
		if got := <-begun; got != c.name {
			t.Errorf("%s is written, want %s", got, c.name)
		}
		results <- c.result
	}
	for _, name := range []string{"lost", "gone", "good"} {
		s.mu.Lock()
		tree := s.unpacked[identify(of(name))]
		s.mu.Unlock()
		<-tree.written
	}
	check := func(name string, want error) {
		t.Helper()
		if err := s.SetDurable(of("other"), of(name)); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
	}
	check("lost", failure)
	check("gone", nil)
	s.tree = func(path string) *Tree {
		return &Tree{path: path, written: make(chan struct{}), write: func() error { return nil }}
	}
	for i := range maxKnown {
		s.committed(of(fmt.Sprint(i)), "")
	}
	check("lost", failure)
	s.mu.Lock()
	if len(s.unpacked) > maxKnown {
		t.Errorf("%d snapshots are known", len(s.unpacked))
	}
	s.mu.Unlock()
	check("good", nil)
}

// TestPathsOfMounts checks which directories mounts have.
func TestPathsOfMounts(t *testing.T) {
	s := New().Snapshots("/r")
	of := func(n string) string { return "/r/snapshots/" + n }
	for name, c := range map[string]struct {
		mounts  []mount.Mount
		want    []string // of all snapshots
		written string   // of the active one
	}{
		"overlayfs": {
			[]mount.Mount{{Type: "overlay", Source: "overlay", Options: []string{"index=off", "workdir=" + of("3/work"), "upperdir=" + of("3/fs"), "lowerdir=" + of("2/fs") + ":" + of("1/fs")}}},
			[]string{of("2"), of("1"), of("3")}, of("3"),
		},
		"native": {[]mount.Mount{{Type: "bind", Source: of("1"), Options: []string{"rbind", "ro"}}}, []string{of("1")}, of("1")},
		"erofs": {
			[]mount.Mount{
				{Type: "erofs", Source: of("2/layer.erofs"), Options: []string{"ro", "loop"}},
				{Type: "erofs", Source: of("1/layer.erofs"), Options: []string{"ro", "loop"}},
				{Type: "format/mkdir/overlay", Source: "overlay", Options: []string{"workdir=" + of("3/work"), "upperdir=" + of("3/fs"), "lowerdir={{ overlay 0 1 }}"}},
			},
			[]string{of("2"), of("1"), of("3")}, of("3"),
		},
		"erofs, merged": {
			[]mount.Mount{
				{Type: "erofs", Source: of("2/fsmeta.erofs"), Options: []string{"ro", "loop", "device=" + of("1/layer.erofs"), "device=" + of("2/layer.erofs")}},
				{Type: "format/bind", Source: "{{ mount 0 }}", Options: []string{"ro", "rbind"}},
			},
			[]string{of("1"), of("2")}, "",
		},
		"a layer from elsewhere": {[]mount.Mount{{Type: "bind", Source: of("1/fs")}, {Type: "erofs", Source: "/cache/layer.erofs"}}, nil, ""},
		"no directory":           {[]mount.Mount{{Type: "bind", Source: "/r/snapshots"}}, nil, ""},
		"another directory":      {[]mount.Mount{{Type: "bind", Source: "/r/snapshots/../1"}}, nil, ""},
	} {
		got, err := s.directories(c.mounts)
		slices.Sort(c.want)
		if slices.Sort(got); !slices.Equal(got, c.want) || errdefs.IsNotImplemented(err) != (c.want == nil) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, c.want)
		}
		s.prepared(name, c.mounts)
		if written := s.ended(name); written != c.written {
			t.Errorf("%s: %q is written, want %q", name, written, c.written)
		}
	}
}
