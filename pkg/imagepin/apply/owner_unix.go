//go:build unix

package apply

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// checkOwner fails for a drop directory, or a file in it, that somebody else than root and this user can write: it decides what
// the node runs. kind is "file" or "directory".
func checkOwner(kind, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return imagepin.Invalid(kind, path, fmt.Errorf("its owner is user %d, and must be root", st.Uid))
	}
	if info.Mode().Perm()&0o022 != 0 {
		return imagepin.Invalid(kind, path, errors.New("others than its owner can write it"))
	}
	return nil
}
