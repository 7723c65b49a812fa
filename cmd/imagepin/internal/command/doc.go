package command

import "github.com/urfave/cli/v3"

// Root is the command with all of its subcommands, for what is generated of
// it. It is not for running.
func Root() *cli.Command { return (&app{}).root() }
