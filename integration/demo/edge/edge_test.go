package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/imagepin/imagepin/integration/testkit"
)

// TestDemo runs the demo, which checks itself, and checks what it prints.
func TestDemo(t *testing.T) {
	testkit.RunDemo(t, testkit.Build(t, "."), []string{
		`(?m)^ +Omitted: +2 layers, `,
		`(?ms)^2\. .*^ +web +\S+/edge/web:stable +Always +platform=linux/\S+ version=v1$.* from v1\.tar\.zst, images from a bundle$`,
		`(?ms)^3\. .*^ +\$ imagepin apply v2\.tar\.zst; echo \$\?$.*^ +1$`,
		`(?ms)^4\. .*^ +agent +\S+/edge/agent:stable +Always +platform=linux/\S+ version=v1$.*^ +Previous: +none$.*^5\. `,
		`(?ms)^5\. .*^ +Applied lock .*^ +Containers: +2 run another digest than the lock$.*^ +10$.*version=v2$`,
		`(?ms)^6\. .*^ +\$ imagepin rollback$.*version=v1$.*^ +\d+ checked, 0 differ, 0 repaired$`,
		`(?m)^Result after `,
	})
}

// TestInterrupted interrupts the demo before the node starts, while it applies an update, and after the power loss.
func TestInterrupted(t *testing.T) {
	demo := testkit.Build(t, ".")
	for _, test := range []struct {
		at     string
		signal os.Signal
	}{
		{"   root ", syscall.SIGTERM},
		{"3. ", os.Interrupt},
		{"4. ", os.Interrupt},
	} {
		t.Run(strings.TrimSpace(test.at), func(t *testing.T) {
			testkit.InterruptDemo(t, demo, test.at, test.signal)
		})
	}
}
