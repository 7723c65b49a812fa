// Command demo shows in a few seconds what imagepin does: one image tag on one node, for two platforms and two snapshotters
// at once, each handler with its own digest. With -stock it does the same to containerd without imagepin and shows where
// that fails.
//
// Everything runs in this process, in a temporary root and on the loopback interface; nothing is downloaded, and nothing is
// left when it ends, by Ctrl-C too. Every statement it prints about the node is checked: with imagepin the exit code is
// 0 only if all of them hold.
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

// timeout ends a demo that hangs. It takes a few seconds otherwise.
const timeout = 2 * time.Minute

func main() {
	stock := flag.Bool("stock", false, "do the same with stock containerd and show where it fails")
	flag.Parse()
	if code, done := withoutRoot(); done {
		os.Exit(code)
	}
	// Without this, a closed standard output would kill the process before it could clean up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if err := run(*stock); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run runs a demo until it ends, is told to stop, or nobody reads its output any more, and cleans up in any case.
func run(stock bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, expire := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not done after %s", timeout))
	defer expire()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return newDemo(&output{file: os.Stdout, closed: cancel}, stock).run(ctx)
}

// output ends the demo when it cannot be written to, such as a pipe whose reader has gone.
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
