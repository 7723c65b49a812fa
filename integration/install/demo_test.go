package install

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/imagepin/imagepin/integration/testkit"
)

// buildDemo compiles the demo and returns the binary's path.
func buildDemo(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "demo")
	if out, err := exec.CommandContext(testkit.Context(t), "go", "build", "-o", path, "../demo").CombinedOutput(); err != nil {
		t.Fatalf("building the demo: %v\n%s", err, out)
	}
	return path
}

// TestDemo runs the demo, which checks itself, and checks what it prints.
func TestDemo(t *testing.T) {
	demo := buildDemo(t)
	tests := []struct {
		name string
		args []string
		want []string // regular expressions
	}{
		{"ours", nil, []string{
			`(?m)^ +runc +linux/\S+ +overlayfs +\w{12} \(v1\) +\w{12} +platform=linux/\S+ version=v1$`,
			`(?m)^ +second +linux/\S+ +native +\w{12} \(v1\) +\w{12} +platform=linux/\S+ version=v1$`,
			`(?m)^ +arm +linux/arm64 +overlayfs +\w{12} \(v1\) +\w{12} +platform=linux/arm64 version=v1$`,
			`(?m)^ +runc +linux/\S+ +overlayfs +\w{12} \(v2\) +\w{12} +platform=linux/\S+ version=v2$`,
			`(?m)^ +pull again for each +3 +0 +0 +0$`,
			`passed all \d+ checks`,
		}},
		{"stock", []string{"-stock"}, []string{
			`(?m)^ +second +linux/\S+ +overlayfs ! .* no pod \[1\]$`,
			`\[1\] RunPodSandbox \(handler "second"\)`,
			`step 2, handler arm: platform is`,
			`step 3, handler second: the first pod failed`,
			`step 4, handler arm: digest is \w{12} \(v2\), want \w{12} \(v1\)`,
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			out, err := exec.CommandContext(testkit.Context(t), demo, test.args...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range test.want {
				if !regexp.MustCompile(want).Match(out) {
					t.Errorf("the output does not match %s:\n%s", want, out)
				}
			}
			for line := range strings.Lines(string(out)) {
				if len(line) > 111 {
					t.Errorf("a line is longer than 110 columns: %s", line)
				}
			}
			demoLeavesNothing(t, string(out))
		})
	}
}

// TestDemoInterrupted interrupts the demo while it prepares, while pods run, and while containerd is down.
func TestDemoInterrupted(t *testing.T) {
	demo := buildDemo(t)
	for _, test := range []struct {
		at     string
		signal os.Signal
	}{
		{"2. ", os.Interrupt},
		{"4. ", os.Interrupt},
		{"5. ", syscall.SIGTERM},
	} {
		t.Run("step "+strings.Trim(test.at, ". ")+" "+test.signal.String(), func(t *testing.T) {
			out, err := interruptDemo(t, demo, test.at, test.signal)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("the demo: got %v, want exit code 1\n%s", err, out)
			}
			if !strings.Contains(out, "Cleaned up") || strings.Contains(out, "Result") {
				t.Errorf("the demo was not interrupted:\n%s", out)
			}
			demoLeavesNothing(t, out)
		})
	}
}

// interruptDemo sends the demo a signal when it prints a line with a prefix. It returns the whole output and the error.
func interruptDemo(t *testing.T, demo, at string, signal os.Signal) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(testkit.Context(t), demo)
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

// demoLeavesNothing checks that no files, mounts, cgroups and processes of the root that the demo printed are left.
func demoLeavesNothing(t *testing.T, out string) {
	t.Helper()
	root := regexp.MustCompile(`/\S*/imagepin-\d+-\d+`).FindString(out)
	if root == "" {
		t.Fatalf("the demo did not print its root:\n%s", out)
	}
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
