package packages

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sassoftware/go-rpmutils"

	"github.com/imagepin/imagepin/integration/testkit"
)

// TestReproducible builds the packages again, in another directory and with another umask, time zone and locale. The
// packages are identical.
func TestReproducible(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "some", "where", "else")
	copyTree(t, root, copied)
	// The files have other times too.
	old := time.Unix(0, 0)
	if err := filepath.WalkDir(copied, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(path, old, old))
	}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(testkit.Context(t), "/bin/sh", "-c", "umask 077 && exec make packages ARCHS="+runtime.GOARCH)
	cmd.Dir = copied
	cmd.Env = append(os.Environ(), "TZ=Asia/Kathmandu", "LC_ALL=POSIX", "SOURCE_DATE_EPOCH="+epoch(t), "MAKEFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make packages: %v\n%s", err, out)
	}
	again := sums(t, filepath.Join(copied, "dist"))
	first := sums(t, dist())
	if len(again) == 0 {
		t.Fatal("nothing was built")
	}
	for name, sum := range again {
		if first[name] != sum {
			t.Errorf("%s: got checksum %q in dist and %q in the copy", name, first[name], sum)
		}
	}
}

// copyTree copies the files that git tracks, and the untracked ones that it does not ignore.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = from
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		st, err := os.Stat(filepath.Join(from, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, but still in the index
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(to, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name), content, st.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
}

// sums reads SHA256SUMS and checks it against the files in the directory.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			t.Fatalf("invalid line %q in SHA256SUMS", line)
		}
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(content)); got != sum {
			t.Errorf("%s: got checksum %s, want %s as in SHA256SUMS", name, got, sum)
		}
		m[name] = sum
	}
	return m
}

// file is an entry of a package.
type file struct {
	mode  int64
	sum   string
	mtime int64
}

// tarball reads the files of the tarball of a package.
func tarball(t *testing.T, name string) map[string]file {
	t.Helper()
	f, err := os.Open(packaged(t, name+"-[0-9]*-linux-{arch}.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]file)
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return m
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Typeflag != tar.TypeReg {
			t.Errorf("%s: got owner %d:%d and type %c, want a regular file of root", h.Name, h.Uid, h.Gid, h.Typeflag)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		m["/"+h.Name] = file{h.Mode, fmt.Sprintf("%x", sha256.Sum256(content)), h.ModTime.Unix()}
	}
}

// epoch returns the modification time of all files in the packages.
func epoch(t *testing.T) string {
	t.Helper()
	for _, f := range tarball(t, "imagepin") {
		return strconv.FormatInt(f.mtime, 10)
	}
	t.Fatal("the tarball is empty")
	return ""
}

// TestFormatsAgree checks that the deb, the rpm and the tarball of a package have the same files.
func TestFormatsAgree(t *testing.T) {
	rpmArch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	// The directory of zsh completions differs between rpm and deb distributions.
	debPaths := strings.NewReplacer("/zsh/site-functions/", "/zsh/vendor-completions/")
	for _, name := range []string{"imagepin", "imagepin-containerd"} {
		t.Run(name, func(t *testing.T) {
			want := tarball(t, name)
			f, err := os.Open(packaged(t, name+"-[0-9]*."+rpmArch+".rpm"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			pkg, err := rpmutils.ReadRpm(f)
			if err != nil {
				t.Fatal(err)
			}
			infos, err := pkg.Header.GetFiles()
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[string]file)
			for _, i := range infos {
				if i.Mode()&0o170000 == 0o100000 {
					got[debPaths.Replace(i.Name())] = file{int64(i.Mode() & 0o7777), i.Digest(), int64(i.Mtime())}
				}
			}
			if !maps.Equal(got, want) {
				t.Errorf("got files in the rpm\n%v\nwant, as in the tarball\n%v", got, want)
			}
			// dpkg-deb prints the files of the deb as a tarball.
			deb := exec.CommandContext(testkit.Context(t), "dpkg-deb", "--fsys-tarfile", packaged(t, name+"_*_{arch}.deb"))
			out, err := deb.Output()
			if err != nil {
				t.Fatal(err)
			}
			inDeb := make(map[string]file)
			for tr := tar.NewReader(bytes.NewReader(out)); ; {
				h, err := tr.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if h.Typeflag != tar.TypeReg {
					continue
				}
				content, err := io.ReadAll(tr)
				if err != nil {
					t.Fatal(err)
				}
				inDeb[strings.TrimPrefix(h.Name, ".")] = file{h.Mode, fmt.Sprintf("%x", sha256.Sum256(content)), h.ModTime.Unix()}
			}
			if !maps.Equal(inDeb, want) {
				t.Errorf("got files in the deb\n%v\nwant, as in the tarball\n%v", inDeb, want)
			}
		})
	}
}

// TestBillOfMaterials checks that the software bill of materials (SBOM) has every module of the binaries, with its
// version and licence.
func TestBillOfMaterials(t *testing.T) {
	for _, name := range []string{"imagepin", "imagepin-containerd"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if out, err := exec.CommandContext(testkit.Context(t), "dpkg-deb", "--extract", packaged(t, name+"_*_{arch}.deb"), dir).CombinedOutput(); err != nil {
				t.Fatalf("dpkg-deb: %v\n%s", err, out)
			}
			text, err := os.ReadFile(packaged(t, name+"-[0-9]*-linux-{arch}.spdx.json"))
			if err != nil {
				t.Fatal(err)
			}
			inside, err := os.ReadFile(filepath.Join(dir, "usr/share/doc", name, "sbom.spdx.json"))
			if err != nil || !bytes.Equal(inside, text) {
				t.Errorf("the SBOM in the package differs from the separate one (%v)", err)
			}
			var doc struct {
				SPDXVersion string
				Packages    []struct {
					Name, VersionInfo, LicenseConcluded string
					Checksums                           []struct{ Algorithm, ChecksumValue string }
				}
			}
			if err := json.Unmarshal(text, &doc); err != nil {
				t.Fatal(err)
			}
			listed := make(map[string]bool)
			hashes := make(map[string]string)
			for _, p := range doc.Packages {
				if p.LicenseConcluded == "" || p.VersionInfo == "" {
					t.Errorf("%s: got version %q and licence %q", p.Name, p.VersionInfo, p.LicenseConcluded)
				}
				listed[p.Name+" "+p.VersionInfo] = true
				for _, c := range p.Checksums {
					hashes[p.Name] = c.Algorithm + ":" + c.ChecksumValue
				}
			}
			binaries, _ := filepath.Glob(filepath.Join(dir, "usr/bin/*"))
			more, _ := filepath.Glob(filepath.Join(dir, "usr/lib/imagepin/bin/*"))
			binaries = append(binaries, more...)
			if len(binaries) == 0 || len(hashes) != len(binaries) {
				t.Errorf("got binaries %q in the package and %v in the SBOM", binaries, slices.Sorted(maps.Keys(hashes)))
			}
			for _, b := range binaries {
				content, err := os.ReadFile(b)
				if err != nil {
					t.Fatal(err)
				}
				if want := fmt.Sprintf("SHA256:%x", sha256.Sum256(content)); hashes[filepath.Base(b)] != want {
					t.Errorf("%s has checksum %s, but %s in the SBOM", b, want, hashes[filepath.Base(b)])
				}
				info, err := buildinfo.ReadFile(b)
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range info.Deps {
					if d.Path != info.Main.Path && d.Path != "github.com/imagepin/imagepin" && !listed[d.Path+" "+d.Version] {
						t.Errorf("the SBOM lacks a module of %s: %s %s", filepath.Base(b), d.Path, d.Version)
					}
				}
				for _, s := range info.Settings {
					if s.Key == "CGO_ENABLED" && s.Value != "0" || strings.HasPrefix(s.Key, "vcs") || strings.Contains(s.Value, "/home/") {
						t.Errorf("%s is built with %s=%s", filepath.Base(b), s.Key, s.Value)
					}
				}
			}
		})
	}
}
