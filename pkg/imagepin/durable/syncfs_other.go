//go:build !linux

package durable

import (
	"os"

	"github.com/containerd/errdefs"
)

// Supported reports whether this system can make a file system durable.
const Supported = false

// ReportsErrors reports whether the kernel returns the errors of a disk.
func ReportsErrors() bool { return true }

func syncfs(*os.File) error { return errdefs.ErrNotImplemented }

func sameFileSystem(_, _ *os.File) bool { return false }
