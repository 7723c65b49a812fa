package command

import "github.com/urfave/cli/v3"

func (a *app) lockCommand() *cli.Command {
	return group(&cli.Command{Name: "lock", Usage: "Write locks, and show the lock of the node", Commands: []*cli.Command{a.lockStatusCommand(), a.lockRemoveCommand()}})
}
