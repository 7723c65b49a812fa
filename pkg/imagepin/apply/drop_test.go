package apply

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

// TestDropDirectoriesOfOthers lists drop directories that others can write, or that have files that others can write.
func TestDropDirectoriesOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		dir, file os.FileMode
		refused   bool
	}{
		"only the owner writes": {0o755, 0o644, false}, "all read": {0o755, 0o444, false},
		"a group writes the file": {0o755, 0o664, true}, "all write the file": {0o755, 0o646, true},
		"a group writes the directory": {0o775, 0o644, true}, "all write the directory": {0o777 | os.ModeSticky, 0o644, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "locks.d")
			file := filepath.Join(dir, "a.yaml")
			if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(file, nil, 0o644), os.Chmod(file, c.file), os.Chmod(dir, c.dir)); err != nil {
				t.Fatal(err)
			}
			d, err := readDropped(dir, "")
			if errdefs.IsInvalidArgument(err) != c.refused || err == nil && len(d.locks) != 1 {
				t.Errorf("got %v and %v, want refused %t", d.locks, err, c.refused)
			}
		})
	}
}
