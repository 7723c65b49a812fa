package testkit

import (
	"io/fs"
	"os"
	"path/filepath"
)

// TruncateAll removes the content of all files in a directory, as a power cut does, and returns how many.
func (r *Rig) TruncateAll(dir string) (n int) {
	r.T.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		n++
		return os.Truncate(path, 0)
	})
	if err != nil || n == 0 {
		r.T.Fatalf("truncated %d files in %s: %v", n, dir, err)
	}
	return n
}
