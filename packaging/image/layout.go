package main

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// writeLayout writes an index as an OCI image layout in a tar archive. The version is its tag.
func (b *build) writeLayout(file string, index v1.ImageIndex) error {
	dir, err := os.MkdirTemp(b.out, ".layout-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	tag := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": b.version})
	if err := path.AppendIndex(index, tag); err != nil {
		return err
	}
	return b.archive(file, dir)
}

// archive writes the files of a directory to a tar archive, in the order of their names.
func (b *build) archive(file, dir string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	tw := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return b.add(tw, filepath.ToSlash(rel), path)
	})
	return errors.Join(err, tw.Close(), f.Close())
}

func (b *build) add(tw *tar.Writer, name, path string) error {
	src, err := os.Open(path)
	if err != nil {
		return err
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Size: info.Size(), Mode: 0o644, ModTime: b.created, Format: tar.FormatUSTAR}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(tw, src)
	return err
}
