// Command containerd is containerd 2.2 with its own plugins and imagepin.
package main

import (
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/cmd/containerd/command"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"

	"github.com/imagepin/imagepin/plugins/imagepin"
	_ "github.com/imagepin/imagepin/plugins/imagepin/cluster"
	_ "github.com/imagepin/imagepin/plugins/imagepin/fleet"
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
	return command.App().Run(os.Args)
}
