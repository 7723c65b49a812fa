package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/imagepin/imagepin/packaging/internal/modules"
)

// file is a file of an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// archive writes the archive of a platform and returns its SHA-256.
func (b *build) archive(platform string) (string, error) {
	files, err := b.files(platform)
	if err != nil {
		return "", err
	}
	f, err := os.Create(filepath.Join(b.out, b.archiveName(platform)))
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if err := b.write(io.MultiWriter(f, sum), files); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), f.Close()
}

func (b *build) files(platform string) ([]file, error) {
	licenses, err := b.licenses(platform)
	if err != nil {
		return nil, err
	}
	files := []file{{name: "third-party-licenses.txt", mode: 0o644, content: licenses}}
	binary := filepath.Base(b.binary(platform))
	sources := []struct {
		name, path string
		mode       int64
	}{
		{binary, b.binary(platform), 0o755},
		{"kubectl_complete-imagepin", filepath.Join(b.root, "contrib/krew/kubectl_complete-imagepin"), 0o755},
		{"LICENSE", filepath.Join(b.root, "LICENSE"), 0o644},
	}
	for _, s := range sources {
		if s.name == "kubectl_complete-imagepin" && binary != name {
			continue // a shell script
		}
		content, err := os.ReadFile(s.path)
		if err != nil {
			return nil, err
		}
		files = append(files, file{s.name, s.mode, content})
	}
	return files, nil
}

// write writes a compressed tar file. Its gzip header has neither a name nor a time.
func (b *build) write(w io.Writer, files []file) error {
	zw, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(zw)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: b.mtime, Format: tar.FormatUSTAR}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write(f.content); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return zw.Close()
}

// self is the module of this repository, of which the plugin has packages.
const self = "github.com/imagepin/imagepin"

// linkedLicenses returns the licenses of the modules that are linked for a platform.
func (b *build) linkedLicenses(platform string) ([]byte, error) {
	linked, err := modules.Linked(filepath.Join(b.root, "cmd/kubectl-imagepin"), []string{platform}, ".")
	if err != nil {
		return nil, err
	}
	licenses := make(map[modules.Module]modules.License)
	for _, m := range linked {
		if m.Path == self {
			continue
		}
		if licenses[m], err = m.License(); err != nil {
			return nil, err
		}
	}
	return modules.Texts(licenses), nil
}
