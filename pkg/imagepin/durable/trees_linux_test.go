package durable

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// calls are the calls of a Barrier that write the data of a file, and its calls of fsync, which have a star.
type calls struct {
	mu    sync.Mutex
	paths []string
	do    func(path string) error // may be nil
}

func (c *calls) writeData(fd int) error { return c.called(fd, "", writeData) }

func (c *calls) fsync(fd int) error { return c.called(fd, "*", fsync) }

func (c *calls) called(fd int, mark string, call func(int) error) error {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.paths = append(c.paths, path+mark)
	c.mu.Unlock()
	if c.do != nil {
		return c.do(path)
	}
	return call(fd)
}

// counted returns a Barrier that counts calls of fsync, in any file system, and the root of a snapshotter with files.
func counted(t *testing.T, names ...string) (*Barrier, *calls, string) {
	t.Helper()
	b, c, root := New(), &calls{}, filepath.Join(t.TempDir(), "root")
	b.ordered, b.writeData, b.fsync = func(*os.File) bool { return true }, c.writeData, c.fsync
	for _, name := range append(names, "snapshots/") {
		path := filepath.Join(root, name)
		noError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if strings.HasSuffix(name, "/") {
			noError(t, os.MkdirAll(path, 0o755))
		} else {
			noError(t, os.WriteFile(path, []byte(name), 0o644))
		}
	}
	noError(t, b.Open(root))
	return b, c, root
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestFilesOfTrees checks what is written: the data of all regular files of snapshots, each once, and at last the directory above. What
// is no file of a snapshot is not opened.
func TestFilesOfTrees(t *testing.T) {
	b, c, root := counted(t, "snapshots/1/fs/bin/app", "snapshots/1/fs/empty/", "snapshots/1/work/", "snapshots/2/layer.erofs", "snapshots/3/fs/other")
	dir := filepath.Join(root, "snapshots/1/fs/bin")
	noError(t, os.Link(filepath.Join(dir, "app"), filepath.Join(dir, "link")))
	noError(t, os.Symlink(filepath.Join(root, "snapshots/3/fs"), filepath.Join(dir, "symlink")))
	noError(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	paths := []string{filepath.Join(root, "snapshots/1"), filepath.Join(root, "snapshots/2")}
	noError(t, b.syncTrees(t.Context(), filepath.Join(root, "snapshots"), trees(paths)...))
	var got []string
	for _, path := range c.paths {
		rel, err := filepath.Rel(root, path)
		noError(t, err)
		got = append(got, strings.Replace(rel, "bin/link", "bin/app", 1))
	}
	if got[len(got)-1] != "snapshots*" {
		t.Errorf("the last one is %s", got[len(got)-1])
	}
	want := []string{"snapshots*", "snapshots/1/fs/bin/app", "snapshots/2/layer.erofs"}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// TestChangeOfParent checks that the fsync is of a directory that was changed after all data was written: it makes durable what was
// changed before.
func TestChangeOfParent(t *testing.T) {
	b, c, root := counted(t, "snapshots/1/fs/app")
	parent := filepath.Join(root, "snapshots")
	old := time.Unix(1, 0)
	noError(t, os.Chtimes(parent, old, old))
	c.do = func(path string) error {
		info, err := os.Stat(parent)
		if err == nil && info.ModTime().Equal(old) == (path == parent) {
			t.Errorf("fsync of %s with the time %s", path, info.ModTime())
		}
		return err
	}
	noError(t, b.syncTrees(t.Context(), parent, &Tree{path: filepath.Join(parent, "1")}))
}

// TestUnusableTrees checks trees that cannot be written file by file, which is no failure of a disk.
func TestUnusableTrees(t *testing.T) {
	b, _, root := counted(t, "snapshots/1/fs/app")
	parent := filepath.Join(root, "snapshots")
	noError(t, os.Symlink("1", filepath.Join(parent, "symlink")))
	for tree, want := range map[string]error{
		filepath.Join(parent, "gone"): fs.ErrNotExist, filepath.Join(parent, "symlink"): unix.ENOTDIR, "/proc/self/task": errdefs.ErrNotImplemented,
		filepath.Join(parent, "1/fs/app"): unix.ENOTDIR,
	} {
		if err := b.syncTrees(t.Context(), parent, &Tree{path: tree}); !errors.Is(err, want) || errdefs.IsUnavailable(err) {
			t.Errorf("%s: got %v, want %v", tree, err, want)
		}
	}
	b.ordered = func(*os.File) bool { return false }
	if err := b.syncTrees(t.Context(), parent, &Tree{path: filepath.Join(parent, "1")}); !errdefs.IsNotImplemented(err) {
		t.Errorf("without an order: got %v", err)
	}
}

// TestWrittenAhead checks that a tree is written once if somebody has begun that, and that only files beside those of the layer are
// written later, which a snapshotter may have made in the meantime.
func TestWrittenAhead(t *testing.T) {
	b, c, root := counted(t, "snapshots/1/fs/app", "snapshots/2/fs/app")
	parent := filepath.Join(root, "snapshots")
	noError(t, unix.Mkfifo(filepath.Join(parent, "1/fifo"), 0o600))
	tree := b.writtenAhead(filepath.Join(parent, "1"))
	tree.writeOnce()
	tree.writeOnce()
	if want := []string{filepath.Join(parent, "1/fs/app")}; !slices.Equal(c.paths, want) {
		t.Errorf("got %v, want %v", c.paths, want)
	}
	noError(t, os.WriteFile(filepath.Join(parent, "1/later"), nil, 0o600))
	noError(t, b.syncTrees(t.Context(), parent, tree))
	if want := []string{filepath.Join(parent, "1/fs/app"), filepath.Join(parent, "1/later"), parent + "*"}; !slices.Equal(c.paths, want) {
		t.Errorf("got %v, want %v", c.paths, want)
	}

	// One that nobody has begun to write is begun when it is needed.
	c.paths = nil
	noError(t, b.syncTrees(t.Context(), parent, b.writtenAhead(filepath.Join(parent, "2"))))
	if want := []string{filepath.Join(parent, "2/fs/app"), parent + "*"}; !slices.Equal(c.paths, want) {
		t.Errorf("got %v, want %v", c.paths, want)
	}
}

// TestFailedTree checks that a file that the disk has lost stays lost: the kernel reports it once. Another failure to write a tree does not
// count when it can be written later.
func TestFailedTree(t *testing.T) {
	b, c, root := counted(t, "snapshots/1/fs/app")
	b.patience = time.Hour
	parent, failure := filepath.Join(root, "snapshots"), errors.New("input/output error")
	c.do = func(string) error { return failure }
	tree := b.writtenAhead(filepath.Join(parent, "1"))
	tree.writeOnce()
	c.do = nil
	for range 2 {
		if err := b.SyncTrees(t.Context(), root, time.Now(), tree); !errors.Is(err, failure) || !errdefs.IsUnavailable(err) {
			t.Errorf("got %v, want %v", err, failure)
		}
	}

	tree = b.writtenAhead(filepath.Join(parent, "2"))
	tree.writeOnce()
	noError(t, os.MkdirAll(filepath.Join(parent, "2/fs"), 0o700))
	noError(t, os.WriteFile(filepath.Join(parent, "2/fs/app"), nil, 0o600))
	c.paths = nil
	noError(t, b.syncTrees(t.Context(), parent, tree))
	if want := []string{filepath.Join(parent, "2/fs/app"), parent + "*"}; !slices.Equal(c.paths, want) {
		t.Errorf("got %v, want %v", c.paths, want)
	}
}

// TestTwoFailures checks that a disk that has lost a file counts more than another reason to end, if fsync has reported it.
func TestTwoFailures(t *testing.T) {
	b, c, root := counted(t, "snapshots/1/a")
	b.ranges = func() bool { return false }
	parent, failure := filepath.Join(root, "snapshots"), errors.New("input/output error")
	c.do = func(string) error { return failure }
	dir := filepath.Join(parent, "1")
	fd, err := unix.Open(filepath.Join(dir, "a"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	noError(t, err)
	w := b.newWrite(t.Context())
	noError(t, w.put(opened{fd: fd, path: filepath.Join(dir, "a")}))
	if err := w.end(unix.EMFILE); !errors.Is(err, failure) || !errdefs.IsUnavailable(err) {
		t.Errorf("got %v, want %v", err, failure)
	}
	if err := b.newWrite(t.Context()).end(unix.EMFILE); !errors.Is(err, unix.EMFILE) {
		t.Errorf("without a file: got %v, want EMFILE", err)
	}
	if open := openFiles(t, root); open > 0 {
		t.Errorf("%d open files", open)
	}
}

// TestManyFiles checks that all files are written if there are more than are open at once, with and without sync_file_range.
func TestManyFiles(t *testing.T) {
	for _, ranges := range []bool{true, false} {
		var names []string
		for n := range 3 * aheadFiles {
			names = append(names, fmt.Sprintf("snapshots/1/fs/%d", n))
		}
		b, c, root := counted(t, names...)
		b.ranges = func() bool { return ranges }
		most := 0
		c.do = func(string) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			most = max(most, openFiles(t, root))
			return nil
		}
		parent := filepath.Join(root, "snapshots")
		noError(t, b.syncTrees(t.Context(), parent, &Tree{path: filepath.Join(parent, "1")}))
		slices.Sort(c.paths)
		if got := len(slices.Compact(c.paths)); got != len(names)+1 || len(c.paths) != len(names)+1 {
			t.Errorf("ranges %t: %d calls for %d files, want %d", ranges, len(c.paths), got, len(names)+1)
		}
		limit := aheadFiles
		if !ranges {
			limit = aheadSyncs
		}
		if most > limit+10 { // and directories
			t.Errorf("ranges %t: %d open files, want %d at most", ranges, most, limit)
		}
	}
}

// TestOrdered checks which file systems keep the order of changes. proc does not.
func TestOrdered(t *testing.T) {
	f, err := os.Open("/proc")
	noError(t, err)
	defer f.Close()
	if ordered(f) {
		t.Error("proc keeps the order of changes")
	}
	dir := t.TempDir()
	if hasJournal(dir) {
		t.Error("no ext4 has a journal")
	}
	for task, want := range map[string]bool{"<none>\n": false, "123\n": true, "0\n": true} {
		noError(t, os.WriteFile(filepath.Join(dir, "journal_task"), []byte(task), 0o600))
		if got := hasJournal(dir); got != want {
			t.Errorf("%q: a journal: %t, want %t", task, got, want)
		}
	}
}

// TestEitherWay checks the results of both ways. A way that never ends does not keep the other one from succeeding.
func TestEitherWay(t *testing.T) {
	failure, gone := errors.New("input/output error"), errors.New("the caller has gone")
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	hang := func() error { <-never; return nil }
	ok, fail := func() error { return nil }, func() error { return failure }
	all := map[string]struct {
		files, system func() error
		tree          string
		canceled      bool
		want          error
		unavailable   bool
	}{
		"syncfs waits for the data of others": {files: ok, system: hang},
		"the files take long":                 {files: hang, system: ok},
		"syncfs fails for another file":       {files: ok, system: fail},
		"a file is lost":                      {files: fail, system: hang, want: failure, unavailable: true},
		"a snapshot is gone":                  {files: ok, system: ok, tree: "gone"},
		"gone, and syncfs fails":              {files: ok, system: fail, tree: "gone", want: fs.ErrNotExist, unavailable: true},
		"none ends":                           {files: hang, system: hang, canceled: true, want: gone},
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		one := all[name]
		t.Run(name, func(t *testing.T) {
			b, c, root := counted(t, "snapshots/1/fs/app")
			b.patience = 0
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			asked := make(chan struct{}, 1)
			b.directories[root].sync.do = func() error {
				asked <- struct{}{}
				return one.system()
			}
			var first sync.Once
			c.do = func(string) error {
				if one.want == nil && one.tree == "" {
					first.Do(func() { <-asked }) // syncfs has begun
				}
				return one.files()
			}
			if one.canceled {
				cancel(gone)
			}
			tree := "1"
			if one.tree != "" {
				tree = one.tree
			}
			err := b.SyncTrees(ctx, root, time.Now(), &Tree{path: filepath.Join(root, "snapshots", tree)})
			if !errors.Is(err, one.want) || errdefs.IsUnavailable(err) != one.unavailable {
				t.Errorf("got %v, want %v", err, one.want)
			}
		})
	}
}

// TestErrorOfAnotherSync checks that a sync that failed while snapshots were unpacked counts for them: the kernel reports an error
// once.
func TestErrorOfAnotherSync(t *testing.T) {
	b, _, root := counted(t)
	failure := errors.New("input/output error")
	results := []error{failure, nil, nil}
	b.directories[root].sync.do = func() error {
		err := results[0]
		results = results[1:]
		return err
	}
	since := time.Now()
	if err := b.Sync(t.Context(), root); !errors.Is(err, failure) {
		t.Fatalf("got %v", err)
	}
	gone := filepath.Join(root, "snapshots/gone")
	if err := b.SyncTrees(t.Context(), root, since, &Tree{path: gone}); !errors.Is(err, failure) || !errdefs.IsUnavailable(err) {
		t.Errorf("created before: got %v, want %v", err, failure)
	}
	if err := b.SyncTrees(t.Context(), root, time.Now(), &Tree{path: gone}); err != nil {
		t.Errorf("created later: %v", err)
	}
}

// TestHangingDisk checks that calls whose context has ended leave a bounded number of calls behind, and no open file when these
// have returned.
func TestHangingDisk(t *testing.T) {
	for _, ranges := range []bool{true, false} {
		var names []string
		for n := range 2 * aheadFiles {
			names = append(names, fmt.Sprintf("snapshots/1/fs/%d", n))
		}
		b, c, root := counted(t, names...)
		b.ranges = func() bool { return ranges }
		calls := 1 // of each write
		if !ranges {
			calls = aheadSyncs
		}
		answer := make(chan struct{})
		hanging := make(chan struct{}, 10*maxWrites*aheadFiles)
		c.do = func(string) error {
			hanging <- struct{}{}
			<-answer
			return nil
		}
		b.directories[root].sync.do = func() error { <-answer; return nil }
		gone := errors.New("the caller has gone")
		for i := range 2 * maxWrites {
			ctx, cancel := context.WithCancelCause(t.Context())
			result := make(chan error)
			tree := &Tree{path: filepath.Join(root, "snapshots/1")}
			if i%2 == 1 {
				tree = b.writtenAhead(tree.path)
			}
			go func() { result <- b.SyncTrees(ctx, root, time.Now(), tree) }()
			if i < maxWrites {
				for range calls {
					<-hanging
				}
			}
			cancel(gone)
			if err := <-result; !errors.Is(err, gone) {
				t.Errorf("got %v, want %v", err, gone)
			}
		}
		if len(hanging) > 0 {
			t.Errorf("ranges %t: %d more calls than %d", ranges, len(hanging), maxWrites*calls)
		}
		close(answer)
		for range maxWrites { // all have ended when all slots are free
			b.directories[root].slots <- struct{}{}
		}
		for openFiles(t, root) > 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// openFiles returns the number of open files in a directory.
func openFiles(t *testing.T, dir string) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	noError(t, err)
	for _, fd := range all {
		path, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && strings.HasPrefix(path, dir+"/") { // it can be closed meanwhile
			n++
		}
	}
	return n
}

// TestReadOnlyTrees checks that the file system is synced where the snapshotter's directory cannot be changed.
func TestReadOnlyTrees(t *testing.T) {
	b, _, root := counted(t, "snapshots/1/fs/app")
	synced := 0
	b.directories[root].sync.do = func() error { synced++; return nil }
	noError(t, unix.Mount(root, root, "", unix.MS_BIND, ""))
	t.Cleanup(func() { noError(t, unix.Unmount(root, unix.MNT_DETACH)) })
	noError(t, unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	noError(t, b.SyncTrees(t.Context(), root, time.Now(), &Tree{path: filepath.Join(root, "snapshots/1")}))
	if synced != 1 {
		t.Errorf("%d calls of syncfs, want 1", synced)
	}
}
