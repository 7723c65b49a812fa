// Command modes prints a pattern for go test -skip that matches the integration tests that do not run with imagepin
// serve. All other tests run in both modes. docs/standalone.md has the same list with the same reasons.
package main

import (
	"fmt"
	"strings"
)

// difference is a test that applies only to the plugin.
type difference struct{ test, reason string }

var pluginOnly = []difference{
	{"TestWrongConfig", "An invalid section keeps the plugin from loading. `imagepin serve` does not start, or keeps its current configuration, and reports the same error."},
	{"TestDisabled", "`disabled_plugins` disables the plugin. To disable `imagepin serve`, set containerd's socket in kubelet's configuration."},
	{"TestTCP", "containerd can serve its CRI on TCP. `imagepin serve` has a unix socket only."},
}

// pattern returns a pattern that matches exactly the tests in pluginOnly.
func pattern() string {
	names := make([]string, len(pluginOnly))
	for i, d := range pluginOnly {
		names[i] = d.test
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

func main() { fmt.Println(pattern()) }
