package install

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/imagepin/imagepin/integration/testkit"
)

// TestDemo runs the demo, which checks itself, and checks what it prints.
func TestDemo(t *testing.T) {
	demo := testkit.Build(t, "../demo")
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
			`(?m)^ +1 +2 +\w{12} \(v1\) +platform=linux/\S+ version=v1$`,
			`(?m)^ +1 +3 +\w{12} \(v1\) +platform=linux/\S+ version=v1$`,
			`(?m)^ +2 +2 +\w{12} \(v2\) +platform=linux/\S+ version=v2$`,
			`(?m)^ +pull again for each +3 +0 +0 +0$`,
			`(?m)^ +pods of two revisions +0 +0 +0 +0$`,
			`passed all \d+ checks`,
		}},
		{"stock", []string{"-stock"}, []string{
			`(?m)^ +second +linux/\S+ +overlayfs ! .* no pod \[1\]$`,
			`\[1\] RunPodSandbox \(handler "second"\)`,
			`step 2, handler arm: platform is`,
			`step 3, handler second: the first pod failed`,
			`step 4, handler arm: digest is \w{12} \(v2\), want \w{12} \(v1\)`,
			`(?m)^ +1 +2 +none +platform=linux/\S+ version=v2 !$`,
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for line := range strings.Lines(testkit.RunDemo(t, demo, test.want, test.args...)) {
				if len(line) > 111 {
					t.Errorf("a line is longer than 110 columns: %s", line)
				}
			}
		})
	}
}

// TestDemoInterrupted interrupts the demo while it prepares, while pods run, and while containerd is down.
func TestDemoInterrupted(t *testing.T) {
	demo := testkit.Build(t, "../demo")
	for _, test := range []struct {
		at     string
		signal os.Signal
	}{
		{"2. ", os.Interrupt},
		{"4. ", os.Interrupt},
		{"6. ", syscall.SIGTERM},
	} {
		t.Run("step "+strings.Trim(test.at, ". ")+" "+test.signal.String(), func(t *testing.T) {
			testkit.InterruptDemo(t, demo, test.at, test.signal)
		})
	}
}
