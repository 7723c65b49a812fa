package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

func TestSweepTakesDeadOwnersOnly(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	child := exec.Command("true")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	dir := func(pid int) string {
		d := filepath.Join(os.TempDir(), rootPrefix+strconv.Itoa(pid)+"-x")
		if err := os.MkdirAll(filepath.Join(d, "root"), 0o755); err != nil {
			t.Fatal(err)
		}
		return d
	}
	dead, running := dir(child.Process.Pid), dir(os.Getpid())
	// A test has mounted its own filesystem there.
	if err := syscall.Mount("tmpfs", dead, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("root of a dead process: got %v, want a removed root", err)
	}
	if _, err := os.Stat(running); err != nil {
		t.Errorf("root of a running process: got %v, want the root", err)
	}
}
