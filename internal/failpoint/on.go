//go:build failpoints && unix

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// anyName is the name that means every failpoint.
const anyName = "*"

var (
	mu    sync.Mutex
	name  string
	left  int
	trace *os.File
)

func init() {
	if err := configure(os.Getenv("IMAGEPIN_FAILPOINT"), os.Getenv("IMAGEPIN_FAILPOINT_TRACE")); err != nil {
		fmt.Fprintln(os.Stderr, "failpoint:", err)
		os.Exit(2)
	}
}

func configure(spec, path string) error {
	left = 1
	var n string
	var counted bool
	if name, n, counted = strings.Cut(spec, ":"); counted {
		var err error
		if left, err = strconv.Atoi(n); err != nil || left < 1 {
			return fmt.Errorf("IMAGEPIN_FAILPOINT=%s: %q is no count", spec, n)
		}
	}
	if path == "" {
		return nil
	}
	var err error
	trace, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return err
}

// Reach kills the process where the environment says so.
func Reach(at string) {
	mu.Lock()
	defer mu.Unlock()
	if trace != nil {
		_, _ = fmt.Fprintln(trace, at) // a test that reads it will miss it
	}
	if name != at && name != anyName {
		return
	}
	if left--; left != 0 {
		return
	}
	// As a machine that loses power has it: nothing is closed, flushed or
	// deferred.
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
