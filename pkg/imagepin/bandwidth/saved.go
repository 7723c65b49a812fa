package bandwidth

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/containerd/v2/pkg/atomicfile"
)

// maxSaved is the maximum size of a file with a limit, in bytes.
const maxSaved = 32

// LoadRate returns the limit in bytes per second that a file has, and whether there is a file. It fails if the file is not one of
// [SaveRate].
func LoadRate(path string) (bytesPerSecond int64, ok bool, _ error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSaved+1))
	if err != nil {
		return 0, false, err
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || n < 0 {
		return 0, false, fmt.Errorf("%s does not have a rate", path)
	}
	return n, true, nil
}

// SaveRate writes a limit in bytes per second to a file. It is on the disk when SaveRate returns.
func SaveRate(path string, bytesPerSecond int64) error {
	f, err := atomicfile.New(path, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(strconv.AppendInt(nil, bytesPerSecond, 10)); err != nil {
		return errors.Join(err, f.Cancel())
	}
	if err := f.Close(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// RemoveRate removes the file of a limit, if there is one.
func RemoveRate(path string) error {
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return syncDir(filepath.Dir(path))
}
