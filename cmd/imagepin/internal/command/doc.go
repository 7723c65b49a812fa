package command

import "github.com/urfave/cli/v3"

// Root returns the command with all of its subcommands, for generators. It cannot run.
func Root() *cli.Command { return (&app{}).root() }
