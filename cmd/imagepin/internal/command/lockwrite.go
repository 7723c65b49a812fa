package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/atomicfile"

	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// writeLock writes a lock to a file, or to standard output if path is empty, and then prints the summary.
func (a *app) writeLock(path string, l *lock.Lock, summary string) error {
	data, err := l.Marshal()
	if err != nil {
		return err
	}
	d, err := l.Digest()
	if err != nil {
		return err
	}
	if path == "" {
		if _, err := a.Out.Write(data); err != nil {
			return err
		}
	} else {
		if err := writeFile(path, data); err != nil {
			return err
		}
		summary += "\nWrote " + path
	}
	_, err = fmt.Fprintf(a.Err, "%s\nDigest of the lock: %s\n", summary, d)
	return err
}

// writeFile replaces a file at once: its readers see the old or the new content. A symbolic link remains, and its target is
// replaced. A file that is not regular, such as a pipe, is written to.
func writeFile(path string, data []byte) error {
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return os.WriteFile(path, data, 0o644)
	default:
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
	}
	f, err := atomicfile.New(path, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		_ = f.Cancel()
		return err
	}
	return f.Close()
}
