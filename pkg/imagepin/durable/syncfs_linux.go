package durable

import (
	"os"

	"golang.org/x/sys/unix"
)

// Supported reports whether this system can make a file system durable.
const Supported = true

func syncfs(f *os.File) error { return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd()))) }

// sameFileSystem reports whether two open files are in one file system. Subvolumes of btrfs have devices of their own, and
// count as several.
func sameFileSystem(a, b *os.File) bool {
	var of, other unix.Stat_t
	return unix.Fstat(int(a.Fd()), &of) == nil && unix.Fstat(int(b.Fd()), &other) == nil && of.Dev == other.Dev
}
