package apt

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/packaging/internal/content"
	"github.com/imagepin/imagepin/packaging/internal/testpkg"
)

// TestWrite writes the same packages twice, in another order. integration/packages installs from a repository with apt.
func TestWrite(t *testing.T) {
	var debs []string
	for _, arch := range []string{"amd64", "arm64"} {
		debs = append(debs, testpkg.Build(t, "deb", "tool", "1.0.0-rc.1", arch), testpkg.Build(t, "deb", "extra", "1.0.0", arch, "tool"))
	}
	first := write(t, debs)
	slices.Reverse(debs)
	if second := write(t, debs); !maps.Equal(first, second) {
		t.Errorf("got files\n%v\nand then\n%v", first, second)
	}
	release := first["dists/stable/Release"]
	for _, line := range []string{"Suite: stable\n", "Date: Tue, 14 Nov 2023 22:13:20 UTC\n", "Architectures: amd64 arm64\n", "Acquire-By-Hash: yes\n"} {
		if !strings.Contains(release, line) {
			t.Errorf("the release file has no %q:\n%s", line, release)
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		for _, name := range []string{"Packages", "Packages.gz"} {
			dir := "main/binary-" + arch
			text := first["dists/stable/"+dir+"/"+name]
			sum := content.Digest([]byte(text))
			if text == "" || !strings.Contains(release, " "+sum+" ") || first["dists/stable/"+dir+"/by-hash/SHA256/"+sum] != text {
				t.Errorf("%s/%s with hash %s is not in the release file, or not there by its hash", dir, name, sum)
			}
		}
		packages := first["dists/stable/main/binary-"+arch+"/Packages"]
		deb := "pool/main/t/tool/tool_1.0.0~rc.1_" + arch + ".deb"
		for _, line := range []string{"Package: tool\n", "Depends: tool\n", "Filename: " + deb + "\n", "SHA256: " + content.Digest([]byte(first[deb])) + "\n"} {
			if !strings.Contains(packages, line) {
				t.Errorf("the index of %s has no %q:\n%s", arch, line, packages)
			}
		}
	}
}

// write writes a repository and returns its files by path.
func write(t *testing.T, debs []string) map[string]string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "apt")
	if err := Write(dir, debs, testpkg.Date); err != nil {
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

// TestInvalid writes repositories with no packages, with a file that is no deb, and with a truncated deb.
func TestInvalid(t *testing.T) {
	deb, err := os.ReadFile(testpkg.Build(t, "deb", "tool", "1.0.0", "amd64"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"none": nil, "other.deb": []byte("not a deb"), "truncated.deb": deb[:150]} {
		t.Run(name, func(t *testing.T) {
			var debs []string
			if text != nil {
				debs = []string{filepath.Join(t.TempDir(), name)}
				if err := os.WriteFile(debs[0], text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			dir := filepath.Join(t.TempDir(), "apt")
			want := dir
			if text != nil {
				want = debs[0]
			}
			if err := Write(dir, debs, testpkg.Date); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want an error that names %s", err, want)
			}
		})
	}
}
