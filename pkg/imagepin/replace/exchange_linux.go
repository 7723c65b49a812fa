package replace

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// exchangeDirectories exchanges two directories of one file system.
func exchangeDirectories(a, b string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		return &os.LinkError{Op: "renameat2", Old: a, New: b, Err: err}
	}
	return nil
}

// writable returns why this process may not write to a directory; nil if it may.
func writable(dir string) error { return unix.Access(dir, unix.W_OK) }

// syncParents makes the entries of directories in their parents durable.
func syncParents(dirs []string) error {
	var parents []string
	for _, dir := range dirs {
		parents = append(parents, filepath.Dir(dir))
	}
	slices.Sort(parents)
	for _, parent := range slices.Compact(parents) {
		f, err := os.Open(parent)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// kernelParameter reports whether a parameter of overlayfs is on. A kernel that does not have it, does not have the feature.
func kernelParameter(name string) bool {
	b, err := os.ReadFile(filepath.Join("/sys/module/overlay/parameters", name))
	return err == nil && strings.TrimSpace(string(b)) != "N" || err != nil && !errors.Is(err, fs.ErrNotExist)
}
