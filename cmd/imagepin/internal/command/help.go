package command

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"
)

// exitCodesTopic is the argument of help that prints the exit codes.
const exitCodesTopic = "exit-codes"

const helpDescription = `Shows the help of a command, as its --help does. "imagepin help exit-codes" lists
the exit codes of all commands.

Examples:
  imagepin help
  imagepin help pin set
  imagepin help exit-codes`

func (a *app) helpCommand() *cli.Command {
	return &cli.Command{
		Name:        "help",
		Usage:       "Show the help of a command",
		ArgsUsage:   "[COMMAND...]",
		Description: helpDescription,
		Action:      a.help,
	}
}

func (a *app) help(_ context.Context, cmd *cli.Command) error {
	names := cmd.Args().Slice()
	if len(names) == 1 && names[0] == exitCodesTopic {
		_, err := fmt.Fprint(a.Out, exitCodesText())
		return err
	}
	found := cmd.Root()
	for _, name := range names {
		sub := found.Command(name)
		if sub == nil {
			return unknownCommand(found, name)
		}
		found = sub
	}
	// The context of a command makes it the parent of the next one.
	return a.root().Run(context.Background(), append([]string{cmd.Root().Name}, append(names, "--help")...))
}
