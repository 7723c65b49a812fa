package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/pkg/atomicfile"
)

// bootIDFile has a random ID of the running boot, see random(4).
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// BootID returns the ID of the running boot. It is empty if the system has none.
func BootID() string {
	b, err := os.ReadFile(bootIDFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Boots is the file with the ID of the last boot whose start has dealt with what the boot before left.
type Boots struct{ path string }

// BootsIn returns the file in a directory, which may not exist.
func BootsIn(directory string) Boots { return Boots{filepath.Join(directory, "boot")} }

// Settled reports whether a start in the running boot has called [Boots.Settle]. It is true if the system has no boot IDs.
func (b Boots) Settled() (bool, error) {
	now := BootID()
	if now == "" {
		return true, nil
	}
	last, err := os.ReadFile(b.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read the ID of the last boot: %w", err)
	}
	return string(last) == now, nil
}

// Settle notes that nothing of an earlier boot is left.
func (b Boots) Settle() error {
	if err := os.MkdirAll(filepath.Dir(b.path), 0o700); err != nil {
		return fmt.Errorf("note the ID of the boot: %w", err)
	}
	f, err := atomicfile.New(b.path, 0o600)
	if err != nil {
		return fmt.Errorf("note the ID of the boot: %w", err)
	}
	if _, err := f.Write([]byte(BootID())); err != nil {
		return fmt.Errorf("note the ID of the boot: %w", errors.Join(err, f.Cancel()))
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("note the ID of the boot: %w", err)
	}
	return nil
}

// Remove removes the file, if it exists.
func (b Boots) Remove() error {
	if err := os.Remove(b.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the ID of the last boot: %w", err)
	}
	return nil
}
