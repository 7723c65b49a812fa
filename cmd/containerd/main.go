// Command containerd is containerd with all of its own plugins and imagepin. The build tags no_cluster and no_fleet leave out parts of
// imagepin.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/cmd/containerd/command"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"

	"github.com/imagepin/imagepin/plugins/imagepin"
)

func main() {
	if err := run(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "containerd:", err)
		os.Exit(1)
	}
}

func run() error {
	if err := imagepin.Decorate(); err != nil {
		return err
	}
	return command.App().Run(context.Background(), os.Args)
}
