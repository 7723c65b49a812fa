// Command modes prints what of the integration tests does not run with imagepin serve, as a pattern for go test -skip. All else runs in
// both modes. docs/standalone.md has the same list, with the same reasons.
package main

import (
	"fmt"
	"strings"
)

// difference is a test that is about the plugin only.
type difference struct{ test, reason string }

var pluginOnly = []difference{
	{"TestWrongConfig", "A wrong section keeps the plugin from loading. `imagepin serve` does not start, or goes on with the configuration it has, and says the same."},
	{"TestDisabled", "`disabled_plugins` switches the plugin off. `imagepin serve` is switched off by pointing kubelet at containerd's socket."},
	{"TestTCP", "containerd can serve its CRI on TCP. `imagepin serve` has a unix socket only."},
}

// pattern matches the tests, and those alone.
func pattern() string {
	names := make([]string, len(pluginOnly))
	for i, d := range pluginOnly {
		names[i] = d.test
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

func main() { fmt.Println(pattern()) }
