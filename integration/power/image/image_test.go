package image_test

import (
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/power/image"
)

// TestNew makes the same image twice, and another version, which shares the lower layers.
func TestNew(t *testing.T) {
	opts := image.Options{Layers: 3, Shared: 2, Files: 20, Size: 10 << 10, Version: "1"}
	var made []*image.Image
	for _, version := range []string{"1", "1", "2"} {
		opts.Version = version
		img, err := image.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, img)
	}
	if made[0].ID != made[1].ID || made[0].ID == made[2].ID {
		t.Errorf("IDs %s, %s, and of another version %s", made[0].ID, made[1].ID, made[2].ID)
	}
	for l := range opts.Layers {
		a, b := made[0].Snapshots[l], made[2].Snapshots[l]
		if shared := l < opts.Shared; (a.Name == b.Name) != shared || (made[0].Blobs[l] == made[2].Blobs[l]) != shared {
			t.Errorf("layer %d: snapshots %s and %s, blobs %s and %s", l, a.Name, b.Name, made[0].Blobs[l], made[2].Blobs[l])
		}
	}
	first, second := made[0].Snapshots[0].Files, made[0].Snapshots[1].Files
	if _, ok := first["layer0/dir0/file1"]; !ok {
		t.Error("the first snapshot lacks a file")
	}
	if _, ok := second["layer0/dir0/file1"]; ok {
		t.Error("the second layer does not remove a file")
	}
	if first["layer0/dir0/file2"] == second["layer0/dir0/file2"] {
		t.Error("the second layer does not replace a file")
	}
	var bytes int64
	for _, f := range first {
		bytes += f.Size
	}
	if bytes < opts.Size/2 || bytes > 3*opts.Size {
		t.Errorf("a layer has %d bytes, want about %d", bytes, opts.Size)
	}
}

// TestCompare damages a directory in each way that Compare must find.
func TestCompare(t *testing.T) {
	content := []byte("content")
	files := image.Files{
		"dir":       {Mode: fs.ModeDir | 0o750},
		"dir/file":  {Mode: 0o640, Size: int64(len(content)), Sum: sha256.Sum256(content)},
		"dir/empty": {Mode: 0o600, Sum: sha256.Sum256(nil)},
		"link":      {Mode: fs.ModeSymlink | 0o777, Link: "dir/file"},
	}
	for name, c := range map[string]struct {
		damage func(dir string) error
		want   string
	}{
		"intact":  {func(string) error { return nil }, ""},
		"missing": {func(dir string) error { return os.Remove(dir + "/dir/empty") }, "dir/empty: missing"},
		"emptied": {func(dir string) error { return os.Truncate(dir+"/dir/file", 0) }, "dir/file: 0 bytes, not 7"},
		"zeros":   {func(dir string) error { return os.WriteFile(dir+"/dir/file", make([]byte, 7), 0) }, "dir/file: other content"},
		"mode":    {func(dir string) error { return os.Chmod(dir+"/dir/file", 0o600) }, "dir/file: mode -rw-------, not -rw-r-----"},
		"extra":   {func(dir string) error { return os.WriteFile(dir+"/dir/new", nil, 0o600) }, "dir/new: not in the image"},
		"link": {func(dir string) error {
			if err := os.Remove(dir + "/link"); err != nil {
				return err
			}
			return os.Symlink("dir", dir+"/link")
		}, `link: link to "dir", not "dir/file"`},
		"type": {func(dir string) error {
			if err := os.Remove(dir + "/dir/empty"); err != nil {
				return err
			}
			return os.Mkdir(dir+"/dir/empty", 0o600)
		}, "dir/empty: mode drw-------, not -rw-------"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, err := range []error{
				os.Mkdir(filepath.Join(dir, "dir"), 0o750), os.WriteFile(filepath.Join(dir, "dir/file"), content, 0o640),
				os.WriteFile(filepath.Join(dir, "dir/empty"), nil, 0o600), os.Symlink("dir/file", filepath.Join(dir, "link")), c.damage(dir),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if got := strings.Join(files.Compare(dir), "\n"); !strings.HasPrefix(got, c.want) || (c.want == "") != (got == "") {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if got := files.Compare(filepath.Join(t.TempDir(), "none")); len(got) < len(files) {
		t.Errorf("a directory that does not exist: %q", got)
	}
}
