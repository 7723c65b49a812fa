package command

import (
	"strings"
	"testing"
)

// TestContainerIDs checks that ps -q prints each container once, also one with image volumes, and keeps the exit code.
func TestContainerIDs(t *testing.T) {
	c := recorded()
	c.ps.Containers = c.ps.Containers[:3]
	if got := run(t, c, "ps", "-q"); got.code != 10 || got.out != "4f1c2a9d8b7e6f50\n9ab2\n" {
		t.Errorf("exit code %d, printed %q", got.code, got.out)
	}
	failed(t, runAt(t, "/absent", nil, "ps", "-q", "-o", "json"), "--quiet excludes --output other than table")
}

// TestUnknownPins checks that ps prints once why it does not know which pin applies, and not into the table.
func TestUnknownPins(t *testing.T) {
	c := recorded()
	c.ps.Containers = append(c.ps.Containers[4:], c.ps.Containers[4:]...)
	got := run(t, c, "ps")
	want := "imagepin: cannot find the pin of " + appRef + ": ClusterUnavailable: the Kubernetes API server does not answer\n"
	if got.code != 0 || got.err != want || strings.Contains(got.out, "ClusterUnavailable") {
		t.Errorf("exit code %d, printed %q and %q, want %q", got.code, got.out, got.err, want)
	}
}
