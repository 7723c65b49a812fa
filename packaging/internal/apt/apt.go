// Package apt writes an APT repository, see https://wiki.debian.org/DebianRepository/Format.
package apt

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/imagepin/imagepin/packaging/internal/content"
)

const suite = "stable"

// Write writes a repository with debs to a directory that does not exist. The debs are hard links. date is the date of the
// repository. The repository is not signed.
func Write(dir string, debs []string, date time.Time) error {
	byArch := make(map[string][]string)
	for _, deb := range slices.Sorted(slices.Values(debs)) {
		arch, entry, err := add(dir, deb)
		if err != nil {
			return err
		}
		byArch[arch] = append(byArch[arch], entry)
	}
	if len(byArch) == 0 {
		return fmt.Errorf("%s: no debs", dir)
	}
	var indexes []index
	for _, arch := range slices.Sorted(maps.Keys(byArch)) {
		plain := []byte(strings.Join(byArch[arch], "\n"))
		zipped, err := content.Gzip(plain)
		if err != nil {
			return err
		}
		name := "main/binary-" + arch + "/Packages"
		indexes = append(indexes, index{name, plain}, index{name + ".gz", zipped})
	}
	dist := filepath.Join(dir, "dists", suite)
	for _, i := range indexes {
		if err := i.write(dist); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dist, "Release"), release(slices.Sorted(maps.Keys(byArch)), indexes, date), 0o644)
}

// add links a deb into the pool, and returns its architecture and its entry in the index.
func add(dir, deb string) (arch, entry string, err error) {
	control, err := readControl(deb)
	if err != nil {
		return "", "", err
	}
	name, arch := field(control, "Package"), field(control, "Architecture")
	if name == "" || arch == "" {
		return "", "", fmt.Errorf("%s: the control file has no package or architecture", deb)
	}
	sum, size, err := content.DigestFile(deb)
	if err != nil {
		return "", "", err
	}
	target := path.Join("pool", "main", name[:1], name, filepath.Base(deb))
	if err := os.MkdirAll(filepath.Join(dir, path.Dir(target)), 0o755); err != nil {
		return "", "", err
	}
	if err := os.Link(deb, filepath.Join(dir, target)); err != nil {
		return "", "", err
	}
	return arch, fmt.Sprintf("%s\nFilename: %s\nSize: %d\nSHA256: %s\n", control, target, size, sum), nil
}

// index is an index of the packages of an architecture. Its name is relative to the distribution.
type index struct {
	name string
	text []byte
}

// write writes the index under its name and under its hash. apt reads the second, so that it never combines an index with
// the Release file of another update.
func (i index) write(dist string) error {
	named := filepath.Join(dist, i.name)
	hashed := filepath.Join(filepath.Dir(named), "by-hash", "SHA256", content.Digest(i.text))
	if err := os.MkdirAll(filepath.Dir(hashed), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(named, i.text, 0o644); err != nil {
		return err
	}
	return os.WriteFile(hashed, i.text, 0o644)
}

func release(archs []string, indexes []index, date time.Time) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `Origin: imagepin
Label: imagepin
Suite: %s
Codename: %s
Date: %s
Architectures: %s
Components: main
Description: Packages of imagepin
Acquire-By-Hash: yes
SHA256:
`, suite, suite, date.UTC().Format("Mon, 02 Jan 2006 15:04:05 UTC"), strings.Join(archs, " "))
	for _, i := range indexes {
		fmt.Fprintf(&b, " %s %d %s\n", content.Digest(i.text), len(i.text), i.name)
	}
	return b.Bytes()
}
