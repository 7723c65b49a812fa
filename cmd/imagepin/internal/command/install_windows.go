package command

import (
	"context"
	"errors"

	"github.com/urfave/cli/v3"
)

// installCommands returns none: a node with systemd runs Linux.
func (a *app) installCommands() []*cli.Command { return nil }

func changeFlags() []cli.Flag { return nil }

func (a *app) uninstallFrom(context.Context, *cli.Command) error { return errors.ErrUnsupported }
