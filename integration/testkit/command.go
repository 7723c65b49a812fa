package testkit

import (
	"os/exec"
	"path/filepath"
	"strings"
)

// Operator runs the imagepin command on the node. It returns the output and the exit code.
func (r *Rig) Operator(args ...string) (string, int) {
	r.T.Helper()
	cmd := exec.CommandContext(r.Ctx, filepath.Join(r.Options().BinDir, "imagepin"), append([]string{"--address", r.Address()}, args...)...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		r.T.Fatalf("imagepin %q: %v", args, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// WantOperator is [Rig.Operator], and fails the test unless the command ends with a code and prints all words. It returns the output.
func (r *Rig) WantOperator(code int, args []string, words ...string) string {
	r.T.Helper()
	out, got := r.Operator(args...)
	if got != code {
		r.T.Errorf("imagepin %s: exit code %d, want %d:\n%s", strings.Join(args, " "), got, code, out)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			r.T.Errorf("imagepin %s: no %q in:\n%s", strings.Join(args, " "), w, out)
		}
	}
	return out
}

// DigestIn returns the digest of a reference by digest.
func DigestIn(ref string) string {
	_, d, _ := strings.Cut(ref, "@")
	return d
}

// Command is [Rig.Operator] for callers that do not check the exit code. It reports whether the code is 0.
func (r *Rig) Command(args ...string) (string, bool) {
	r.T.Helper()
	out, code := r.Operator(args...)
	return out, code == 0
}
