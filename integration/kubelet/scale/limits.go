package main

import (
	"fmt"
	"syscall"
)

// spareFiles are the files that a process has open besides its connections.
const spareFiles = 1_000

// allowFiles raises the limit of open files for a number of connections. The API server inherits the limit.
func allowFiles(connections int) error {
	need := uint64(connections + spareFiles)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Max = max(limit.Max, need)
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("%d connections need %d open files, and the limit cannot be raised (ulimit -Hn): %w", connections, need, err)
	}
	return nil
}
