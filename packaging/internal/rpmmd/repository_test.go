package rpmmd

import (
	"compress/gzip"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/packaging/internal/testpkg"
)

// TestWrite writes the same packages twice, in another order. integration/packages installs from a repository with dnf.
func TestWrite(t *testing.T) {
	rpms := []string{
		testpkg.Build(t, "rpm", "tool", "1.0.0-rc.1", "amd64"), testpkg.Build(t, "rpm", "tool", "1.0.0-rc.1", "arm64"),
		testpkg.Build(t, "rpm", "extra", "1.0.0", "amd64", "tool >= 1.0.0~rc.1-1", "libc"),
	}
	first := write(t, rpms)
	slices.Reverse(rpms)
	if second := write(t, rpms); !maps.Equal(first, second) {
		t.Errorf("got files\n%v\nand then\n%v", first, second)
	}
	for kind, parts := range map[string][]string{
		"primary": {
			`packages="3"`, `<arch>aarch64</arch>`, `<version epoch="0" ver="1.0.0~rc.1" rel="1">`,
			`<summary>A package &amp; a test</summary>`, `<location href="Packages/tool-1.0.0~rc.1-1.x86_64.rpm">`,
			`<rpm:entry name="tool" flags="GE" epoch="0" ver="1.0.0~rc.1" rel="1">`, `<rpm:entry name="libc">`,
			`<file>/usr/bin/extra</file>`,
		},
		"filelists": {`packages="3"`, `<file>/usr/bin/tool</file>`},
		"other":     {`packages="3"`, `name="extra" arch="x86_64"`},
	} {
		text := metadata(t, first, kind)
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%s has no %s:\n%s", kind, part, text)
			}
		}
		if strings.Contains(text, "rpmlib(") {
			t.Errorf("%s has dependencies on features of rpm:\n%s", kind, text)
		}
	}
}

// metadata returns the one metadata file of a kind, decompressed.
func metadata(t *testing.T, files map[string]string, kind string) string {
	t.Helper()
	for path, text := range files {
		if !strings.HasSuffix(path, "-"+kind+".xml.gz") {
			continue
		}
		if !strings.Contains(files["repodata/repomd.xml"], `<location href="`+path+`">`) {
			t.Errorf("repomd.xml has no %s", path)
		}
		zr, err := gzip.NewReader(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(zr)
		if err != nil {
			t.Fatal(err)
		}
		return string(plain)
	}
	t.Fatalf("there is no %s", kind)
	return ""
}

// write writes a repository and returns its files by path.
func write(t *testing.T, rpms []string) map[string]string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "rpm")
	if err := Write(dir, rpms, testpkg.Date); err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, path))
		files[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestInvalid writes repositories with no packages, and with a file that is no rpm.
func TestInvalid(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rpm")
	if err := Write(dir, nil, testpkg.Date); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("without packages: got %v, want an error that names %s", err, dir)
	}
	other := filepath.Join(t.TempDir(), "other.rpm")
	if err := os.WriteFile(other, []byte("not an rpm"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, []string{other}, testpkg.Date); err == nil || !strings.Contains(err.Error(), other) {
		t.Errorf("with a file that is no rpm: got %v, want an error that names %s", err, other)
	}
}
