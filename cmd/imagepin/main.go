// Command imagepin pins image references to digests on this node, and shows images and pins. It calls the imagepin in a
// running containerd.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/imagepin/imagepin/cmd/imagepin/internal/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := command.Run(ctx, command.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Args)
	stop()
	os.Exit(code)
}
