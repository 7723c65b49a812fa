package main

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

// build compiles the demo and returns the binary's path.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "demo")
	if out, err := exec.CommandContext(testkit.Context(t), "go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("building the demo: %v\n%s", err, out)
	}
	return path
}

// TestDemo runs the demo, which checks itself, and checks what it prints.
func TestDemo(t *testing.T) {
	out, err := exec.CommandContext(testkit.Context(t), build(t)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		`(?m)^ +Omitted: +2 layers, `,
		`(?ms)^2\. .*^ +web +\S+/edge/web:stable +Always +platform=linux/\S+ version=v1$.* from v1\.tar\.zst, images from a bundle$`,
		`(?ms)^3\. .*^ +\$ imagepin apply v2\.tar\.zst; echo \$\?$.*^ +1$`,
		`(?ms)^4\. .*^ +agent +\S+/edge/agent:stable +Always +platform=linux/\S+ version=v1$.*^ +Previous: +none$.*^5\. `,
		`(?ms)^5\. .*^ +Applied lock .*^ +Containers: +2 run another digest than the lock$.*^ +10$.*version=v2$`,
		`(?ms)^6\. .*^ +\$ imagepin rollback$.*version=v1$.*^ +\d+ checked, 0 differ, 0 repaired$`,
		`(?m)^Result after `,
	} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("the output does not match %s:\n%s", want, out)
		}
	}
	testkit.NothingLeft(t, string(out))
}

// TestInterrupted interrupts the demo before the node starts, while it applies an update, and after the power loss.
func TestInterrupted(t *testing.T) {
	demo := build(t)
	for _, test := range []struct {
		at     string
		signal os.Signal
	}{
		{"   root ", syscall.SIGTERM},
		{"3. ", os.Interrupt},
		{"4. ", os.Interrupt},
	} {
		t.Run(strings.TrimSpace(test.at), func(t *testing.T) {
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
