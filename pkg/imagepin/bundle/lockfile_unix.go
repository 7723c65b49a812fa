//go:build unix

package bundle

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile fails if another process writes the file.
func lockFile(f *os.File) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another process writes %s: %w", f.Name(), err)
	}
	return nil
}
