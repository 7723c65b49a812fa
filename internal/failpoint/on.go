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

// every matches every failpoint.
const every = "*"

var (
	spec = os.Getenv("IMAGEPIN_FAILPOINT")
	mu   sync.Mutex
	last string // the specification that seen counts
	seen int    // number of matches
)

// Reach kills the process if the environment selects this failpoint.
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
		n, _ = strconv.Atoi(count) // 0 if it is not a number: the test detects that the process does not die
	}
	if seen++; seen != n {
		return
	}
	if inFile {
		note(path+".died", at)
	}
	// As in a power failure, nothing is closed, and no deferred function runs.
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// note appends the name of a failpoint to a file.
func note(path, at string) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return // the test that reads the file detects the missing name
	}
	_, _ = fmt.Fprintln(f, at)
	_ = f.Close()
}
