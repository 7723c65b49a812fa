package command

import (
	"errors"
	"strings"
	"testing"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// TestCheckedPins checks the exit code of pin ls --check. A registry that did not answer comes first, and one that the node has no
// access to does not count.
func TestCheckedPins(t *testing.T) {
	same, denied := lookedUp(workloadPin(), "present", ""), lookedUp(workloadPin(), "no_access", "403")
	gone, silent := lookedUp(workloadPin(), "gone", "404"), lookedUp(workloadPin(), "no_answer", "connection refused\nCheck the network.")
	moved := lookedUp(workloadPin(), "present", "")
	for _, p := range []*api.Pin{same, denied, gone, silent} {
		p.Drift = nil
	}
	moved.Drift = &api.Drift{Digest: digestNew}
	for name, x := range map[string]struct {
		pins []*api.Pin
		want int
	}{
		"none": {nil, exitOK}, "the same": {[]*api.Pin{same, denied}, exitOK}, "gone": {[]*api.Pin{same, gone}, exitChanged},
		"moved": {[]*api.Pin{moved, same}, exitChanged}, "no answer": {[]*api.Pin{gone, silent, moved, silent}, exitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkedPins(x.pins)
			if got := exitCode(err); got != x.want {
				t.Errorf("got %v, want exit code %d", err, x.want)
			}
			if exit := exitError(0); x.want == exitFailed && (errors.As(err, &exit) || !strings.HasSuffix(err.Error(), ": 2, for example: connection refused")) {
				t.Errorf("got %q", err)
			}
		})
	}
}
