package testkit

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Interrupt runs a demo with arguments, and sends it a signal when it prints a line with a prefix. It returns the whole output and the
// error.
func Interrupt(t *testing.T, demo, at string, signal os.Signal, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(Context(t), demo, args...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		out.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), at) {
			break
		}
	}
	if err := cmd.Process.Signal(signal); err != nil {
		t.Error(err)
	}
	for lines.Scan() {
		out.WriteString(lines.Text() + "\n")
	}
	err = errors.Join(lines.Err(), cmd.Wait())
	return out.String(), err
}

// NothingLeft checks that no files, mounts, cgroups and processes are left of the roots that a demo printed.
func NothingLeft(t *testing.T, out string) {
	t.Helper()
	roots := regexp.MustCompile(`/\S*/imagepin-\d+-\d+`).FindAllString(out, -1)
	if len(roots) == 0 {
		t.Fatalf("the demo did not print its root:\n%s", out)
	}
	for _, root := range roots {
		nothingLeft(t, root)
	}
}

func nothingLeft(t *testing.T, root string) {
	t.Helper()
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("%s: %v", root, err)
	}
	name := filepath.Base(root)
	for _, pattern := range []string{"/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 { // the patterns are valid
			t.Errorf("cgroups are left: %q", left)
		}
	}
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "/proc/self/mountinfo") {
		b, _ := os.ReadFile(file) // the process may have exited
		if bytes.Contains(b, []byte(name)) {
			t.Errorf("%s still contains %s: %s", file, name, bytes.ReplaceAll(b, []byte{0}, []byte{' '}))
		}
	}
}
