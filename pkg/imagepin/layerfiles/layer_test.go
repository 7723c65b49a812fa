package layerfiles

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/archive"
)

// archiveOf returns the tar stream of a layer.
func archiveOf(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := h.Gname // the content of a regular file
		h.Gname = ""
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatalf("%q: %v", h.Name, err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name, content string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Gname: content}
}
func dir(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755} }
func symlink(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}
}
func hardlink(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to, Mode: 0o644}
}

// layers are layers with what images have and what they may have.
var layers = map[string][][]tar.Header{
	"all types": {{
		dir("./"), dir("etc/"), file("etc/passwd", "root"), symlink("etc/mtab", "/proc/mounts"), file("empty", ""),
		{Typeflag: tar.TypeReg, Name: "bin/su", Mode: 0o4755, Uid: 1, Gid: 2, Gname: "setuid"},
		{Typeflag: tar.TypeDir, Name: "tmp", Mode: 0o1777}, {Typeflag: tar.TypeDir, Name: "srv", Mode: 0o2750, Gid: 1000},
		{Typeflag: tar.TypeChar, Name: "dev/null", Mode: 0o666, Devmajor: 1, Devminor: 3},
		{Typeflag: tar.TypeBlock, Name: "dev/loop", Mode: 0o660, Devmajor: 7, Devminor: 300, Gid: 6},
		{Typeflag: tar.TypeFifo, Name: "run/pipe", Mode: 0o600}, hardlink("etc/passwd-", "etc/passwd"),
		{Typeflag: tar.TypeLink, Name: "etc/shadow", Linkname: "etc/passwd", Mode: 0o600, Uid: 5},
		{Typeflag: tar.TypeReg, Name: "cap", Mode: 0o755, Gname: "x", PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"}},
	}},
	"removed": {
		{file("a/b", "1"), file("a/c", "2"), file("d/e/f", "3"), file("g", "4"), symlink("h", "a")},
		{file("a/.wh.b", ""), file(".wh.d", ""), file(".wh.gone", ""), file("g", "new")},
		{dir("d"), file("d/e", "a file now"), file(".wh.h", ""), file("h/i", "a directory now")},
	},
	"opaque": {
		{file("a/b/c", "1"), file("a/d", "2"), file("e/f", "3")},
		{file("a/new", "4"), file("a/.wh..wh..opq", ""), file("a/newer", "5"), dir("a/b"), file("a/.wh..wh..opq", ""), file("e/g/h", "6"), file("e/.wh..wh..opq", "")},
	},
	"links in parents": {
		{dir("usr/lib"), symlink("lib", "usr/lib"), file("lib/a", "1"), symlink("x", "../../.."), file("x/lib/b", "2"), symlink("abs", "/usr"), file("abs/lib/c", "3")},
		{symlink("lib", "usr/lib"), file("lib/d", "4"), hardlink("lib/e", "lib/d"), symlink("l1", "l2"), symlink("l2", "l3/../usr"), file("l1/f", "5")},
	},
	"hard links over layers": {
		{file("a", "1"), hardlink("b", "a")},
		{file("b", "2"), file("c", "3"), hardlink("d/e", "c"), file(".wh.a", "")},
	},
	"twice": {{file("a", "1"), file("a", "22"), dir("b"), file("b/c", "3"), file("b", "a file"), dir("c"), {Typeflag: tar.TypeDir, Name: "c/", Mode: 0o700, Uid: 3}}},
	"names": {{
		file("../up", "1"), file("/absolute", "2"), file("a/../b", "3"), file("./c//d", "4"), file(".wh..wh.plnk/1", "5"), file("\xff\xfe\n\t\"", "6"),
		file(strings.Repeat("n", 255), "7"), file("unicode-é-😀", "8"), file("..", "ignored"), dir("/"), file(strings.Repeat("deep/", 300)+"f", "9"),
	}},
	"global header":           {{file("pax_global_header", "1"), {Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "x"}}, file("a", "1")}},
	"whiteout of a new file":  {{file("a", "1")}, {file("b", "1"), file(".wh.b", "")}},
	"whiteout, then the file": {{file("a", "1"), dir("d"), file("d/x", "1")}, {file(".wh.a", ""), file("a", "2"), file(".wh.d", ""), file("d/y", "2")}},
	"whiteout of nothing":     {{file(".wh.", "")}},
	"whiteout of the parent":  {{file("a/.wh...", "")}},
	"whiteout of itself":      {{file("a/.wh..", "")}},
	"file as a directory":     {{file("a", "1"), file("a/b", "2")}},
	"link to nothing":         {{hardlink("a", "b")}},
	"link to itself":          {{file("a", "1"), hardlink("a", "a")}},
	"link to a directory":     {{dir("a"), hardlink("b", "a")}},
	"links in a circle":       {{symlink("a", "b"), symlink("b", "a"), file("a/c", "1")}},
	"link into itself":        {{symlink("a", "a/b"), file("a/c", "1")}},
	"link to a link":          {{symlink("a", "b"), hardlink("c", "a"), file("b", "1"), hardlink("d", "../../a")}},
	"dangling parent":         {{symlink("a", "to/nowhere"), file("a/b", "1")}},
	"name too long":           {{file(strings.Repeat("n", 256), "1")}},
	"path too long":           {{file(strings.Repeat("d/", 2100)+"f", "1")}},
	"contiguous file":         {{{Typeflag: tar.TypeCont, Name: "a"}}},
	"device out of range":     {{{Typeflag: tar.TypeChar, Name: "a", Devmajor: 1 << 33, Format: tar.FormatGNU}}},
	"owner that is not set":   {{{Typeflag: tar.TypeReg, Name: "a", Mode: 0o644, Uid: 1<<32 - 1, Gid: 1<<32 - 2}}},
}

// unpack unpacks layers as containerd does: for overlayfs into a directory for each, and otherwise into one. It returns the
// directories and the trees. It reports false if containerd rejects a layer. Layers that are unpacked in parallel do not know
// those below.
func unpack(t *testing.T, rules Rules, parallel bool, all [][]byte) (dirs []string, trees []*Tree, ok bool) {
	t.Helper()
	root := t.TempDir()
	for n, layer := range all {
		rules := rules
		if n == 0 && rules == Overlay {
			rules = Merge
		}
		dir := filepath.Join(root, "0")
		var opts []archive.ApplyOpt
		if n == 0 || rules == Overlay {
			dir = filepath.Join(root, fmt.Sprint(n))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			dirs, trees = append(dirs, dir), append(trees, NewTree())
		}
		if rules == Overlay {
			opts = []archive.ApplyOpt{archive.WithConvertWhiteout(archive.OverlayConvertWhiteout)}
			if !parallel {
				opts = append(opts, archive.WithParents(lower(dirs[:n])))
			}
		}
		_, theirs := archive.Apply(t.Context(), dir, bytes.NewReader(layer), opts...)
		ours := trees[len(trees)-1].Apply(t.Context(), bytes.NewReader(layer), rules)
		if (theirs == nil) != (ours == nil) {
			for _, l := range all {
				logLayer(t, l)
			}
			t.Fatalf("layer %d: containerd returned %v, and Apply %v", n, theirs, ours)
		}
		if theirs != nil {
			return nil, nil, false
		}
	}
	return dirs, trees, true
}

// lower returns the directories of the layers below, highest first.
func lower(dirs []string) (all []string) {
	for _, d := range dirs {
		all = append([]string{d}, all...)
	}
	return all
}

// TestAsContainerd checks that what containerd unpacks is intact, and that Apply rejects what containerd rejects.
func TestAsContainerd(t *testing.T) {
	for name, headers := range layers {
		var all [][]byte
		for _, h := range headers {
			all = append(all, archiveOf(t, h...))
		}
		for how, rules := range map[string]Rules{"merged": Merge, "overlay": Overlay} {
			t.Run(name+" "+how, func(t *testing.T) {
				dirs, trees, ok := unpack(t, rules, false, all)
				if !ok {
					return
				}
				for n, dir := range dirs {
					wantIntact(t, trees[n], dir)
				}
			})
		}
	}
}

func wantIntact(t *testing.T, tree *Tree, dir string) {
	t.Helper()
	for _, deep := range []bool{false, true} {
		got, err := tree.Compare(t.Context(), dir, Options{Deep: deep})
		if err != nil || got.State != Intact || len(got.Findings) > 0 || got.Reason != "" {
			t.Errorf("deep %t: got %+v, %v, want it intact", deep, got, err)
		}
	}
}
