package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goreleaser/nfpm/v2/files"
)

// tarball writes a tarball of a package, to be extracted in the root directory.
// It omits directories, so that extraction does not change those of the node.
func (b *build) tarball(path string, contents files.Contents) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	zw, err := gzip.NewWriterLevel(f, gzip.DefaultCompression)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(zw)
	for _, c := range contents {
		if err := b.addFile(tw, c); err != nil {
			return fmt.Errorf("%s: %w", c.Destination, err)
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	if err := zw.Close(); err != nil {
		return err
	}
	return f.Close()
}

func (b *build) addFile(tw *tar.Writer, c *files.Content) error {
	h := &tar.Header{
		Name: strings.TrimPrefix(c.Destination, "/"), ModTime: b.mtime,
		Uname: "root", Gname: "root", Format: tar.FormatUSTAR,
	}
	switch c.Type {
	case files.TypeDir, files.TypeImplicitDir:
		return nil
	case files.TypeSymlink:
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, c.Source, 0o777
		return tw.WriteHeader(h)
	}
	src, err := os.Open(c.Source)
	if err != nil {
		return err
	}
	defer src.Close()
	st, err := src.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Size, h.Mode = tar.TypeReg, st.Size(), int64(c.FileInfo.Mode.Perm())
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(tw, src)
	return err
}

// compressManPages replaces each page with a gzip file that has neither name
// nor time in its header.
func compressManPages(dir string) error {
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil {
		return err
	}
	for _, p := range pages {
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		zw, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
		if err != nil {
			return err
		}
		if _, err := zw.Write(text); err != nil {
			return err
		}
		if err := zw.Close(); err != nil {
			return err
		}
		if err := os.WriteFile(p+".gz", b.Bytes(), 0o644); err != nil {
			return err
		}
		if err := os.Remove(p); err != nil {
			return err
		}
	}
	return nil
}

// writeChecksums writes SHA256SUMS of all other files in a directory.
func writeChecksums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var lines []string
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name() == "SHA256SUMS" {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%x  %s\n", sha256.Sum256(content), e.Name()))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[66:], b[66:]) })
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(strings.Join(lines, "")), 0o644)
}
