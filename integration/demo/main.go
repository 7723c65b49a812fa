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
	"os"
	"os/signal"
	"syscall"
	"time"
)

// timeout ends a demo that hangs.
const timeout = 2 * time.Minute

func main() {
	stock := flag.Bool("stock", false, "run the same steps on stock containerd and show where it fails")
	flag.Parse()
	if code, done := withoutRoot(); done {
		os.Exit(code)
	}
	// Without this, a closed standard output would kill the process before it cleans up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if err := run(*stock); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run runs the demo until it ends, receives a signal, or cannot write its output. It always cleans up.
func run(stock bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, expire := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not finished after %s", timeout))
	defer expire()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return newDemo(&output{file: os.Stdout, closed: cancel}, stock).run(ctx)
}

// output ends the demo when a write fails, such as to a pipe without a reader.
type output struct {
	file   *os.File
	closed context.CancelCauseFunc
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.file.Write(b)
	if err != nil {
		o.closed(err)
	}
	return n, err
}
