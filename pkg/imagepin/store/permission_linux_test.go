package store_test

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// asUnprivileged runs a test again in a process that is subject to file permissions. It reports whether this is that
// process.
func asUnprivileged(t *testing.T, name string) bool {
	t.Helper()
	const mark = "IMAGEPIN_TEST_UNPRIVILEGED"
	if os.Getenv(mark) != "" {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+name+"$", "-test.v")
	cmd.Env = append(os.Environ(), mark+"=1")
	var out []byte
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends without its capabilities
		for _, c := range []uintptr{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH} {
			// A process that may not drop a capability does not have it.
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EPERM) {
				failed <- err
				return
			}
		}
		var err error
		out, err = cmd.CombinedOutput()
		failed <- err
	}()
	if err := <-failed; err != nil || !strings.Contains(string(out), "--- PASS: "+name) {
		t.Errorf("%s in another process: %v\n%s", name, err, out)
	}
	return false
}

// TestFilePermissionDenied checks that keys with a file that cannot be opened are neither ready nor dropped, and are
// checked again.
func TestFilePermissionDenied(t *testing.T) {
	if !asUnprivileged(t, "TestFilePermissionDenied") {
		return
	}
	e := newEnv(t)
	a := e.image("a")
	e.pull(t, tag, a, native, 1, "")
	config := e.File(a.amd64.Config.Digest)
	noError(t, os.Chmod(config, 0))
	e.restart()
	loaded, err := e.loadFor(e.ctx)
	noError(t, err)
	wantEqual(t, "keys", e.keys(), nil)
	for _, l := range loaded.Lost {
		if !l.Unknown || l.Unpackable || !strings.Contains(l.Reason, "permission denied") {
			t.Errorf("unexpected loss %+v", l)
		}
	}
	if len(loaded.Lost) != 2 {
		t.Errorf("got %d lost keys, want 2", len(loaded.Lost))
	}
	r, err := newChecker(e.store).Check(e.ctx, nil)
	noError(t, err)
	for _, f := range r.Findings {
		if f.RepairHint() != "wait until it can be read" {
			t.Errorf("%+v: got hint %q, want to wait", f, f.RepairHint())
		}
	}
	noError(t, os.Chmod(config, 0o400))
	have, err := newChecker(e.store).Inventory(e.ctx)
	noError(t, err)
	for _, l := range loaded.Lost {
		if loss, lost := newChecker(e.store).Lost(l.Entry, have); lost {
			t.Errorf("lost after the file is readable again: %+v", loss)
		}
	}
}
