package layerfiles

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// content is the content of a file that has more than a page, and begins with a page of zeros.
var content = strings.Repeat("\x00", 8<<10) + strings.Repeat("content ", 8<<10)

// lowerLayer and upperLayer are those of an image that has every type of file.
var lowerLayer = []tar.Header{
	{Typeflag: tar.TypeDir, Name: "etc", Mode: 0o750, Uid: 7}, file("etc/passwd", "root:x:0"), symlink("etc/mtab", "/proc/mounts"),
	{Typeflag: tar.TypeReg, Name: "bin/su", Mode: 0o4755, Gname: content}, {Typeflag: tar.TypeLink, Name: "bin/sudo", Linkname: "bin/su", Mode: 0o4755}, file("empty", ""),
	{Typeflag: tar.TypeChar, Name: "dev/null", Mode: 0o666, Devmajor: 1, Devminor: 3}, {Typeflag: tar.TypeFifo, Name: "pipe", Mode: 0o600},
	file("gone", "1"), file("opaque/gone", "1"), file("zeros", strings.Repeat("\x00", 100<<10)),
}

var upperLayer = []tar.Header{file(".wh.gone", ""), file("opaque/.wh..wh..opq", ""), file("opaque/new", "2")}

// change returns a function that changes the content of a file, and nothing else of it.
func change(name string, to func([]byte) []byte) func(dir string) error {
	return func(dir string) error {
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(to(b))
		return errors.Join(err, f.Close(), os.Chmod(path, 0o755|fs.ModeSetuid))
	}
}

// damages damage a directory. Each is found in one file, with a problem.
var damages = map[string]struct {
	do            func(dir string) error
	path, problem string
	deep          bool // a quick comparison does not find it
	overlay       bool // in the upper layer
}{
	"truncated": {do: change("bin/su", func([]byte) []byte { return nil }), path: "/bin/su", problem: "has 0 bytes instead of 73728"},
	"shorter":   {do: change("bin/su", func(b []byte) []byte { return b[:9] }), path: "/bin/su", problem: "has 9 bytes instead of 73728"},
	"zeros":     {do: change("bin/su", func(b []byte) []byte { return make([]byte, len(b)) }), path: "/bin/su", problem: "has other content"},
	"hole": {do: func(dir string) error {
		return errors.Join(os.Truncate(dir+"/bin/su", 0), os.Truncate(dir+"/bin/su", int64(len(content))))
	}, path: "/bin/su", problem: "has other content"},
	"hole in the end": {do: func(dir string) error {
		return errors.Join(os.Truncate(dir+"/bin/su", 40<<10), os.Truncate(dir+"/bin/su", int64(len(content))))
	}, path: "/bin/su", problem: "has other content"},
	"flipped bit":         {do: change("bin/su", func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), path: "/bin/su", problem: "has other content", deep: true},
	"missing":             {do: func(dir string) error { return os.Remove(dir + "/etc/passwd") }, path: "/etc/passwd", problem: "is missing"},
	"missing directory":   {do: func(dir string) error { return os.RemoveAll(dir + "/etc") }, path: "/etc", problem: "is missing"},
	"more":                {do: func(dir string) error { return os.WriteFile(dir+"/etc/new\n", nil, 0o600) }, path: "/etc/new\n", problem: "is in no layer"},
	"mode":                {do: func(dir string) error { return os.Chmod(dir+"/etc/passwd", 0o600) }, path: "/etc/passwd", problem: "has mode 0600 instead of 0644"},
	"mode of a directory": {do: func(dir string) error { return os.Chmod(dir+"/etc", 0o755) }, path: "/etc", problem: "has mode 0755 instead of 0750"},
	"owner":               {do: func(dir string) error { return os.Chown(dir+"/etc/passwd", 1, 2) }, path: "/etc/passwd", problem: "belongs to 1:2 instead of 0:0"},
	"link": {do: func(dir string) error {
		return errors.Join(os.Remove(dir+"/etc/mtab"), os.Symlink("\x1b[31m", dir+"/etc/mtab"))
	}, path: "/etc/mtab", problem: `links to "\x1b[31m" instead of "/proc/mounts"`},
	"type": {do: func(dir string) error {
		return errors.Join(os.Remove(dir+"/etc/passwd"), os.Mkdir(dir+"/etc/passwd", 0o755))
	}, path: "/etc/passwd", problem: "is a directory instead of a regular file"},
	"device": {do: func(dir string) error {
		return errors.Join(os.Remove(dir+"/dev/null"), unix.Mknod(dir+"/dev/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	}, path: "/dev/null", problem: "is device 1:5 instead of 1:3"},
	"whiteout": {do: func(dir string) error { return os.Remove(dir + "/gone") }, path: "/gone", problem: "is missing", overlay: true},
	"file for a whiteout": {do: func(dir string) error {
		return errors.Join(os.Remove(dir+"/gone"), os.WriteFile(dir+"/gone", nil, 0o600))
	}, path: "/gone", problem: "is a regular file instead of a character device", overlay: true},
	"not opaque": {do: func(dir string) error { return unix.Removexattr(dir+"/opaque", "trusted.overlay.opaque") }, path: "/opaque", problem: "is not opaque", overlay: true},
}

// TestDamage checks that a comparison finds each damage, and a quick one all but altered content.
func TestDamage(t *testing.T) {
	all := [][]byte{archiveOf(t, lowerLayer...), archiveOf(t, upperLayer...)}
	for name, c := range damages {
		for _, rules := range []Rules{Merge, Overlay} {
			if c.overlay && rules == Merge {
				continue
			}
			dirs, trees, ok := unpack(t, rules, false, all)
			if !ok {
				t.Fatal("containerd rejects the layers")
			}
			wantIntact(t, trees[0], dirs[0])
			at := 0
			if c.overlay {
				at = 1
			}
			if err := c.do(dirs[at]); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, deep := range []bool{false, true} {
				got, err := trees[at].Compare(t.Context(), dirs[at], Options{Deep: deep})
				if c.deep && !deep {
					if err != nil || got.State != Intact {
						t.Errorf("%s, quick: got %+v, %v", name, got, err)
					}
					continue
				}
				found := false
				for _, f := range got.Findings {
					// The other name of bin/su is the same file.
					found = found || f.Path == c.path && f.Problem == c.problem
					if f.Path != c.path && f.Path != "/bin/sudo" {
						t.Errorf("%s, rules %d, deep %t: found %s", name, rules, deep, f)
					}
				}
				if err != nil || got.State != Damaged || !found || got.Total != len(got.Findings) {
					t.Errorf("%s, rules %d, deep %t: got %+v, %v, want %s %s", name, rules, deep, got, err, c.path, c.problem)
				}
			}
		}
	}
}

// TestManyFindings checks that findings are bounded, and quoted.
func TestManyFindings(t *testing.T) {
	var headers []tar.Header
	for range 9 {
		headers = append(headers, file(strings.Repeat("\x1b", len(headers)+200), "x"))
	}
	tree := NewTree()
	if err := tree.Apply(t.Context(), bytes.NewReader(archiveOf(t, headers...)), Merge); err != nil {
		t.Fatal(err)
	}
	got, err := tree.Compare(t.Context(), t.TempDir(), Options{})
	if err != nil || got.State != Damaged || got.Total != 9 || len(got.Findings) != maxFindings {
		t.Fatalf("got %+v, %v, want %d of 9 findings", got, err, maxFindings)
	}
	if s := got.Summary(); strings.Contains(s, "\x1b") || !strings.HasSuffix(s, "; and 4 more") || len(s) > maxFindings*(4*maxQuoted+32) {
		t.Errorf("got summary %q", s)
	}
}

// TestOwnFiles checks that files of the snapshotter itself are no finding.
func TestOwnFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/lost+found", 0o700); err != nil {
		t.Fatal(err)
	}
	got, err := NewTree().Compare(t.Context(), dir, Options{Extra: func(path string) bool { return path == "/lost+found" }})
	if err != nil || got.State != Intact {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestUnreadable checks that files that cannot be read make a result unverified, and not damaged.
func TestUnreadable(t *testing.T) {
	deep := strings.Repeat(strings.Repeat("n", 200)+"/", 19) + "f"
	tree := NewTree()
	if err := tree.Apply(t.Context(), bytes.NewReader(archiveOf(t, file(deep, "x"))), Merge); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 250)) // too long together
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	at, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	if err := at.MkdirAll(filepath.Dir(deep), 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := tree.Compare(t.Context(), dir, Options{})
	if err != nil || got.State != Unverified || got.Reason == "" {
		t.Errorf("got %+v, %v, want it unverified", got, err)
	}
}

// TestCompareEnds checks that a comparison ends with its context, and with the error of Read.
func TestCompareEnds(t *testing.T) {
	dirs, trees, _ := unpack(t, Merge, false, [][]byte{archiveOf(t, lowerLayer...)})
	ctx, cancel := context.WithCancel(t.Context())
	var read int64
	_, err := trees[0].Compare(ctx, dirs[0], Options{Deep: true, Read: func(n int64) error { read += n; cancel(); return nil }})
	if !errors.Is(err, context.Canceled) || read == 0 {
		t.Errorf("got %v after %d bytes, want %v", err, read, context.Canceled)
	}
	stop := errors.New("stop")
	for _, deep := range []bool{false, true} {
		if _, err := trees[0].Compare(t.Context(), dirs[0], Options{Deep: deep, Read: func(int64) error { return stop }}); !errors.Is(err, stop) {
			t.Errorf("deep %t: got %v, want %v", deep, err, stop)
		}
	}
}

// TestSparse checks a file with a map of its data (GNU tar --sparse), whose holes are zeros in the snapshot.
func TestSparse(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	blockMap := "1\n100000\n3\n"
	body := blockMap + strings.Repeat("\x00", 512-len(blockMap)) + "end"
	records := map[string]string{"XNU.sparse.major": "1", "XNU.sparse.minor": "0", "XNU.sparse.name": "sparse", "XNU.sparse.realsize": "100003"}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "GNUSparseFile.0/sparse", Mode: 0o644, Size: int64(len(body)), PAXRecords: records}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(body)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer := bytes.ReplaceAll(b.Bytes(), []byte("XNU.sparse"), []byte("GNU.sparse")) // which the writer rejects
	dirs, trees, ok := unpack(t, Merge, false, [][]byte{layer})
	if !ok {
		t.Fatal("containerd rejects the layer")
	}
	if info, err := os.Stat(dirs[0] + "/sparse"); err != nil || info.Size() != 100003 {
		t.Fatalf("got %v, %v, want 100003 bytes", info, err)
	}
	wantIntact(t, trees[0], dirs[0])
}

// TestLimits checks that a layer with too many files, or names that are too long together, is rejected.
func TestLimits(t *testing.T) {
	layer := archiveOf(t, dir("a"), file("a/b", "1"), symlink("c", "0123456789"))
	for _, c := range []struct {
		inodes, names int
		ok            bool
	}{{3, 13, true}, {2, 13, false}, {3, 12, false}} {
		tree := NewTree()
		tree.maxInodes, tree.maxNames = c.inodes, c.names
		if err := tree.Apply(t.Context(), bytes.NewReader(layer), Merge); (err == nil) != c.ok || err != nil && !errdefs.IsResourceExhausted(err) {
			t.Errorf("%d files, %d bytes: got %v", c.inodes, c.names, err)
		}
	}
}

// BenchmarkApply reads a layer of 100,000 files, and reports the memory for each.
func BenchmarkApply(b *testing.B) {
	var headers []tar.Header
	for n := range 100_000 {
		headers = append(headers, file(fmt.Sprintf("usr/lib/python3/dist-packages/package%d/module%d.py", n/50, n), "content"))
	}
	layer := archiveOf(b, headers...)
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		tree := NewTree()
		if err := tree.Apply(b.Context(), bytes.NewReader(layer), Merge); err != nil {
			b.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(tree)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/100_000, "B/file")
}
