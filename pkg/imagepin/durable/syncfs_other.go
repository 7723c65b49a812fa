//go:build !linux

package durable

import (
	"os"

	"github.com/containerd/errdefs"
)

// Supported reports whether this system can make a file system durable.
const Supported = false

func syncfs(*os.File) error { return errdefs.ErrNotImplemented }

func sameFileSystem(_, _ *os.File) bool { return false }
