// Command imagepin pins image references to digests on this node, and shows images and pins. It calls the imagepin in a
// running containerd.
package main

import (
	"context"
	"os"

	"github.com/imagepin/imagepin/cmd/imagepin/internal/command"
)

func main() {
	ctx, stop := command.WithSignals(context.Background())
	code := command.Run(ctx, command.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, parts, os.Args)
	stop()
	os.Exit(code)
}
