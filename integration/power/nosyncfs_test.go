package power

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// withoutSyncfs is the first argument of this process when it is to run a command in which syncfs fails.
const withoutSyncfs = "without-syncfs"

// runWithoutSyncfs runs a command in this process if the arguments say so. The kernel answers its calls of syncfs, and those of its
// children, with an error: what it makes durable then, it makes durable file by file.
func runWithoutSyncfs() {
	if len(os.Args) < 3 || os.Args[1] != withoutSyncfs {
		return
	}
	err := execWithoutSyncfs(os.Args[2:])
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func execWithoutSyncfs(args []string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	const number = 0 // the offset in struct seccomp_data
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SYNCFS, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	runtime.LockOSThread()
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return fmt.Errorf("a filter of system calls: %w", err)
	}
	return unix.Exec(path, args, os.Environ())
}
