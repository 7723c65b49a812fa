// Command edge shows what locks and bundles do on a node that reaches no registry: it boots from a bundle in its drop directory,
// loses power in the middle of an update, completes the update after the next boot, and goes back.
//
// It uses a temporary root and the loopback interface, and downloads nothing. When it ends, also by Ctrl-C, it removes
// everything. It checks what it prints, and the exit code is 0 only if everything is as expected.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/imagepin/imagepin/integration/script"
)

// timeout ends a demo that hangs.
const timeout = 2 * time.Minute

func main() {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "demo: containerd with pods needs root")
		os.Exit(1)
	}
	if err := script.Run(timeout, func(ctx context.Context, out io.Writer) error { return newDemo(out).run(ctx) }); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}
