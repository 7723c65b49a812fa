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

// every is the name that means every failpoint.
const every = "*"

var (
	spec = os.Getenv("IMAGEPIN_FAILPOINT")
	mu   sync.Mutex
	last string // the last specification, which seen belongs to
	seen int    // how often it was met
)

// Reach kills the process where the environment says so.
func Reach(at string) {
	mu.Lock()
	defer mu.Unlock()
	now := spec
	path, inFile := strings.CutPrefix(spec, "@")
	if inFile {
		note(path+".trace", at)
		b, err := os.ReadFile(path)
		if err != nil {
			return
		}
		now = string(b)
	}
	if now != last {
		last, seen = now, 0
	}
	name, count, counted := strings.Cut(now, ":")
	if name != at && name != every {
		return
	}
	n := 1
	if counted {
		n, _ = strconv.Atoi(count) // never, where it is no number: the test will notice
	}
	if seen++; seen != n {
		return
	}
	if inFile {
		note(path+".died", at)
	}
	// As a machine that loses power has it: nothing is closed or deferred.
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// note appends the name of a failpoint to a file.
func note(path, at string) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return // the test that reads it will miss the name
	}
	_, _ = fmt.Fprintln(f, at)
	_ = f.Close()
}
