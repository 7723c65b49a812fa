package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers itself
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"

	"github.com/imagepin/imagepin/packaging/internal/bill"
	"github.com/imagepin/imagepin/packaging/internal/modules"
)

// formats are the formats that nfpm builds. The tarball has the files of the
// deb.
var formats = []string{"deb", "rpm"}

// packages builds the packages of one description for an architecture.
func (b *build) packages(description, arch string) error {
	name := strings.TrimSuffix(description, ".yaml")
	generated := filepath.Join(b.stage, arch, "doc", name)
	if err := os.MkdirAll(generated, 0o755); err != nil {
		return err
	}
	load := func(format string) (*nfpm.Info, error) {
		return b.load(description, format, map[string]string{
			"ARCH": arch, "VERSION": b.version, "BIN": filepath.Join(b.stage, arch), "STAGE": b.stage, "GENERATED": generated,
			// With a tilde, dpkg and rpm sort a prerelease before the release.
			"PKGVERSION": strings.Replace(b.version, "-", "~", 1),
		})
	}
	if err := b.document(load, name, arch, generated); err != nil {
		return err
	}
	for _, format := range formats {
		info, err := load(format)
		if err != nil {
			return err
		}
		if err := b.write(format, info); err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
	}
	info, err := load("deb")
	if err != nil {
		return err
	}
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return err
	}
	return b.tarball(filepath.Join(b.out, fmt.Sprintf("%s-%s-linux-%s.tar.gz", name, b.version, arch)), info.Contents)
}

// document writes the bill of materials of a package and the licenses of the
// modules in its binaries.
func (b *build) document(load func(string) (*nfpm.Info, error), name, arch, dir string) error {
	sbom, texts := filepath.Join(dir, "sbom.spdx.json"), filepath.Join(dir, "third-party-licenses.txt")
	// load needs all files of the package, including these.
	for _, f := range []string{sbom, texts} {
		if err := os.WriteFile(f, nil, 0o644); err != nil {
			return err
		}
	}
	info, err := load("deb")
	if err != nil {
		return err
	}
	var binaries []bill.Binary
	for _, c := range info.Contents {
		if filepath.Dir(c.Source) == filepath.Join(b.stage, arch) {
			binaries = append(binaries, bill.Binary{File: c.Source, Path: c.Destination})
		}
	}
	bom, err := bill.New(name, b.version, "linux-"+arch, b.mtime, binaries)
	if err != nil {
		return err
	}
	text, err := bom.SPDX()
	if err != nil {
		return err
	}
	if err := os.WriteFile(sbom, text, 0o644); err != nil {
		return err
	}
	released := filepath.Join(b.out, fmt.Sprintf("%s-%s-linux-%s.spdx.json", name, b.version, arch))
	if err := os.WriteFile(released, text, 0o644); err != nil {
		return err
	}
	return os.WriteFile(texts, modules.Texts(bom.Licenses), 0o644)
}

// load reads a description for a format and replaces its variables.
func (b *build) load(description, format string, vars map[string]string) (*nfpm.Info, error) {
	text, err := os.ReadFile(description)
	if err != nil {
		return nil, err
	}
	var unknown []string
	expanded := os.Expand(string(text), func(name string) string {
		v, ok := vars[name]
		if !ok {
			unknown = append(unknown, name)
		}
		return v
	})
	if len(unknown) > 0 {
		return nil, fmt.Errorf("unknown variables %q", unknown)
	}
	config, err := nfpm.Parse(strings.NewReader(expanded))
	if err != nil {
		return nil, err
	}
	info, err := config.Get(format)
	if err != nil {
		return nil, err
	}
	info.MTime = b.mtime
	info = nfpm.WithDefaults(info)
	for _, c := range info.Contents {
		if err := b.setFileInfo(c); err != nil {
			return nil, err
		}
	}
	return info, nil
}

// setFileInfo sets owner, group, time and mode, so that they do not depend on
// the umask and the clock of the build.
func (b *build) setFileInfo(c *files.Content) error {
	if c.FileInfo == nil {
		c.FileInfo = &files.ContentFileInfo{}
	}
	c.FileInfo.Owner, c.FileInfo.Group, c.FileInfo.MTime = "root", "root", b.mtime
	if c.FileInfo.Mode != 0 || c.Type == files.TypeSymlink {
		return nil
	}
	c.FileInfo.Mode = 0o644
	if st, err := os.Stat(c.Source); err == nil && st.Mode()&0o100 != 0 {
		c.FileInfo.Mode = 0o755
	} else if err != nil && !strings.ContainsAny(c.Source, "*?[") {
		return err
	}
	return nil
}

func (b *build) write(format string, info *nfpm.Info) error {
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(b.out, packager.ConventionalFileName(info)), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, fs.FileMode(0o644))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := packager.Package(info, f); err != nil {
		return err
	}
	return f.Close()
}
