// Command demo shows what imagepin does: one node has one image tag for two platforms and two snapshotters at the same
// time, and each handler has its own digest. With -stock it runs the same steps on containerd without imagepin and
// shows where they fail.
//
// It uses a temporary root and the loopback interface, and downloads nothing. When it ends, also by Ctrl-C, it removes
// everything. It checks every statement about the node that it prints. With imagepin the exit code is 0 only if all of
// them hold.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/imagepin/imagepin/integration/script"
)

// timeout ends a demo that hangs.
const timeout = 2 * time.Minute

func main() {
	stock := flag.Bool("stock", false, "run the same steps on stock containerd and show where it fails")
	flag.Parse()
	if code, done := withoutRoot(); done {
		os.Exit(code)
	}
	if err := script.Run(timeout, func(ctx context.Context, out io.Writer) error { return newDemo(out, *stock).run(ctx) }); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}
