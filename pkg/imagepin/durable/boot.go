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

// Boots is a file with the ID of the last boot in which something was done that is due once in a boot.
type Boots struct{ path string }

// BootsIn returns the file called name in a directory, which may not exist.
func BootsIn(directory, name string) Boots { return Boots{filepath.Join(directory, name)} }

// Settled reports whether a start in the running boot has called [Boots.Settle]. It is true if the system has no boot IDs.
func (b Boots) Settled() (bool, error) {
	now := BootID()
	if now == "" {
		return true, nil
	}
	last, err := b.last()
	return last == now, err
}

// Ever reports whether a start in any boot has called [Boots.Settle].
func (b Boots) Ever() (bool, error) {
	last, err := b.last()
	return last != "", err
}

func (b Boots) last() (string, error) {
	last, err := os.ReadFile(b.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the ID of the last boot: %w", err)
	}
	return string(last), nil
}

// Settle notes that it is done in the running boot.
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
