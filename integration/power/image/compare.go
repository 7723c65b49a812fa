package image

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Compare compares all files below a directory with what they must be. It returns one line for each file that differs. An error
// to read a file is such a difference.
func (f Files) Compare(dir string) []string {
	var differences []string
	seen := map[string]bool{}
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error { // all errors are differences
		name, _ := filepath.Rel(dir, path)
		if name == "." && err == nil {
			return nil
		}
		seen[name] = true
		want, ok := f[name]
		switch {
		case err != nil:
		case !ok:
			err = fmt.Errorf("not in the image")
		default:
			err = want.compare(path)
		}
		if err != nil {
			differences = append(differences, fmt.Sprintf("%s: %v", name, err))
		}
		return nil
	})
	for name := range f {
		if !seen[name] {
			differences = append(differences, name+": missing")
		}
	}
	return differences
}

func (f File) compare(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode() != f.Mode {
		return fmt.Errorf("mode %s, not %s", info.Mode(), f.Mode)
	}
	switch {
	case f.Mode.IsDir():
	case f.Mode&fs.ModeSymlink != 0:
		if link, err := os.Readlink(path); err != nil || link != f.Link {
			return fmt.Errorf("link to %q, not %q (%v)", link, f.Link, err)
		}
	default:
		return f.compareContent(path, info.Size())
	}
	return nil
}

func (f File) compareContent(path string, size int64) error {
	if size != f.Size {
		return fmt.Errorf("%d bytes, not %d", size, f.Size)
	}
	r, err := os.Open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return err
	}
	if !bytes.Equal(h.Sum(nil), f.Sum[:]) {
		return fmt.Errorf("other content")
	}
	return nil
}
