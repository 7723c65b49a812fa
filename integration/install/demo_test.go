package install

import (
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
			testkit.NothingLeft(t, string(out))
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
			out, err := testkit.Interrupt(t, demo, test.at, test.signal)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("the demo: got %v, want exit code 1\n%s", err, out)
			}
			if !strings.Contains(out, "Cleaned up") || strings.Contains(out, "Result") {
				t.Errorf("the demo was not interrupted:\n%s", out)
			}
			testkit.NothingLeft(t, out)
		})
	}
}
