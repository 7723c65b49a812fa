package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
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
		`(?m)^ +web-\S+ +n1 +platform=linux/\S+ version=v1$`,
		`(?m)^ +web-\S+ +n3 +platform=linux/\S+ version=v2$`,
		`(?ms)^ +\$ kubectl imagepin drift; echo .*^ +ReplicaSet/web-\S+ .* 2 +n2,n3$.*^ +10$.*^ +No drift found in 3 pods of 1 owner\.\n +0$`,
		`(?ms)^ +web-\S+ +n2 +platform=linux/\S+ version=v3$.*^ +web-\S+ +n2 +platform=linux/\S+ version=v2$`,
		`(?m)^Result after `,
	} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("the output does not match %s:\n%s", want, out)
		}
	}
	testkit.NothingLeft(t, string(out))
}

// TestInterrupted interrupts the demo while the nodes run pods.
func TestInterrupted(t *testing.T) {
	out, err := testkit.Interrupt(t, build(t), "3. ", os.Interrupt)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("the demo: got %v, want exit code 1\n%s", err, out)
	}
	if !strings.Contains(out, "Cleaned up") || strings.Contains(out, "Result") {
		t.Errorf("the demo was not interrupted:\n%s", out)
	}
	testkit.NothingLeft(t, out)
}
