package command

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/imagepin/imagepin/cmd/imagepin/internal/manpages"
)

// exitCodesTopic is the argument of help that prints the exit codes.
const exitCodesTopic = "exit-codes"

const helpDescription = `Shows the help of a command, as its --help does. "imagepin help exit-codes" lists
the exit codes of all commands.

With --man, it prints the same text as a manual page. --man-dir writes the pages
of all commands into a directory, for an installation without a package.

Examples:
  imagepin help
  imagepin help pin set
  imagepin help exit-codes
  imagepin help --man pin set | man -l -
  imagepin help --man-dir /usr/local/share/man/man1`

func (a *app) helpCommand() *cli.Command {
	return &cli.Command{
		Name:        "help",
		Usage:       "Show the help of a command",
		ArgsUsage:   "[COMMAND...]",
		Description: helpDescription,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "man", Usage: "print a manual page (roff)"},
			&cli.StringFlag{Name: "man-dir", Usage: "write the manual pages of all commands into `DIR`"},
		},
		Action: a.help,
	}
}

func (a *app) help(_ context.Context, cmd *cli.Command) error {
	names := cmd.Args().Slice()
	if dir := cmd.String("man-dir"); dir != "" {
		if len(names) > 0 || cmd.Bool("man") {
			return fmt.Errorf("--man-dir takes neither --man nor a command, see %s --help", cmd.FullName())
		}
		return manpages.WriteDir(dir, a.root())
	}
	if len(names) == 1 && names[0] == exitCodesTopic {
		if cmd.Bool("man") {
			return fmt.Errorf("%s has no manual page, see imagepin help %[1]s", exitCodesTopic)
		}
		_, err := fmt.Fprint(a.Out, exitCodesText())
		return err
	}
	found, page := cmd.Root(), a.root() // the library adds flags to a root that runs
	path := []*cli.Command{page}
	for _, name := range names {
		sub := found.Command(name)
		if sub == nil {
			return unknownCommand(found, name)
		}
		found, page = sub, page.Command(name)
		path = append(path, page)
	}
	if cmd.Bool("man") {
		return manpages.Write(a.Out, path)
	}
	// The context of a command makes it the parent of the next one.
	return a.root().Run(context.Background(), append([]string{cmd.Root().Name}, append(names, "--help")...))
}
