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

// asUnprivileged runs the test called name again in a process that file
// permissions hold for, and reports whether this is that process.
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
		runtime.LockOSThread() // and never unlocked: the thread ends with what it gives up
		for _, c := range []uintptr{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH} {
			// Who may not give it up does not have it.
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
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// Of a file that may not be opened nothing can be told: its keys are not ready and
// not lost, and are looked at again.
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
		if !l.Wait || l.Unpackable || !strings.Contains(l.Why, "permission denied") {
			t.Errorf("%+v", l)
		}
	}
	if len(loaded.Lost) != 2 {
		t.Errorf("%d are lost", len(loaded.Lost))
	}
	r, err := checkerOf(e.store).Check(e.ctx)
	noError(t, err)
	for _, f := range r.Findings {
		if f.Repair() != "wait until it can be read" {
			t.Errorf("%+v: %s", f, f.Repair())
		}
	}
	noError(t, os.Chmod(config, 0o400))
	have, err := checkerOf(e.store).Inventory(e.ctx)
	noError(t, err)
	for _, l := range loaded.Lost {
		if loss, lost := checkerOf(e.store).Lost(l.Entry, have); lost {
			t.Errorf("it can be read again: %+v", loss)
		}
	}
}
