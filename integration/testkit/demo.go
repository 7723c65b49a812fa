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

// Build compiles the program in a directory, such as a demo, and returns the path of the binary.
func Build(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if out, err := exec.CommandContext(Context(t), "go", "build", "-o", path, dir).CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", dir, err, out)
	}
	return path
}

// RunDemo runs a demo with arguments. It checks that the output, which it returns, matches regular expressions, and that nothing is
// left.
func RunDemo(t *testing.T, demo string, want []string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(Context(t), demo, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range want {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("the output does not match %s:\n%s", want, out)
		}
	}
	NothingLeft(t, string(out))
	return string(out)
}

// InterruptDemo interrupts a demo as Interrupt does, and checks that the demo cleans up and fails.
func InterruptDemo(t *testing.T, demo, at string, signal os.Signal) {
	t.Helper()
	out, err := Interrupt(t, demo, at, signal)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("the demo: got %v, want exit code 1\n%s", err, out)
	}
	if !strings.Contains(out, "Cleaned up") || strings.Contains(out, "Result") {
		t.Errorf("the demo was not interrupted:\n%s", out)
	}
	NothingLeft(t, out)
}

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
