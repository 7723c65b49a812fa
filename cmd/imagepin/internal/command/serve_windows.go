package command

import "github.com/urfave/cli/v3"

// serveCommands are none: imagepin is a plugin of containerd here.
func (a *app) serveCommands() []*cli.Command { return nil }
