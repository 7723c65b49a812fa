package command

import "github.com/urfave/cli/v3"

// serveCommands returns none: on Windows, imagepin is only a plugin of containerd.
func (a *app) serveCommands() []*cli.Command { return nil }
