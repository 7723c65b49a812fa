package durable

import (
	"os"

	"github.com/containerd/containerd/v2/pkg/kernelversion"
	"golang.org/x/sys/unix"
)

// Supported reports whether this system can make a file system durable.
const Supported = true

// ReportsErrors reports whether the kernel returns the errors of a disk from syncfs(2), as Linux 5.8 and later do.
func ReportsErrors() bool {
	reports, err := kernelversion.GreaterEqualThan(kernelversion.KernelVersion{Kernel: 5, Major: 8})
	return err != nil || reports
}

func syncfs(f *os.File) error { return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd()))) }

// sameFileSystem reports whether two open files are in one file system. Subvolumes of btrfs have devices of their own, and
// count as several.
func sameFileSystem(a, b *os.File) bool {
	var of, other unix.Stat_t
	return unix.Fstat(int(a.Fd()), &of) == nil && unix.Fstat(int(b.Fd()), &other) == nil && of.Dev == other.Dev
}
