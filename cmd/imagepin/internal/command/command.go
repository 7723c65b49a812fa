// Package command implements the imagepin command: its subcommands, their calls of the control service in containerd,
// and their output.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/urfave/cli/v3"

	imagepinconfig "github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/version"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1
	exitChanged = 10 // refresh succeeded, and a digest changed
)

// Stdio has the input and output of a command. On terminals, a command draws progress bars and prompts for passwords.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// exitError ends the command with an exit code and without a message, because the command has already printed its
// output.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// app is shared by all subcommands.
type app struct {
	Stdio
	now func() time.Time
	// serveSocket is the default socket of imagepin serve, for hints.
	serveSocket string
}

// Run runs the command and returns its exit code. args begins with the name of the program.
func Run(ctx context.Context, stdio Stdio, args []string) int {
	return (&app{Stdio: stdio, now: time.Now, serveSocket: imagepinconfig.DefaultServeAddress}).run(ctx, args)
}

func (a *app) run(ctx context.Context, args []string) int {
	err := a.root().Run(ctx, args)
	var exit exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return int(exit)
	}
	fmt.Fprintln(a.Err, "imagepin:", err)
	return exitFailed
}

const rootDescription = `imagepin pins image references to digests on this node, and keeps one image for
each platform and snapshotter that pods need. This command calls the imagepin
plugin over containerd's socket, or "imagepin serve" over its own socket
(--address).

List images, and show which digest a tag is pinned to:
  imagepin images
  imagepin inspect docker.io/library/nginx:1.29

Show what a pull would use, and pull:
  imagepin resolve docker.io/library/nginx:1.29
  imagepin pull docker.io/library/nginx:1.29 --handler kata

Pin a tag to a digest, refresh the pin, and remove it:
  imagepin pin set docker.io/library/nginx:1.29 sha256:5f1…
  imagepin refresh docker.io/library/nginx:1.29
  imagepin pin rm docker.io/library/nginx:1.29

Complete commands and flags in the shell (bash, zsh, fish, pwsh):
  source <(imagepin completion bash)`

func (a *app) root() *cli.Command {
	root := &cli.Command{
		Name:                  "imagepin",
		Usage:                 "Pin image references to digests, and show images and pins",
		Version:               version.Version,
		Description:           rootDescription,
		EnableShellCompletion: true,
		ConfigureShellCompletionCommand: func(c *cli.Command) {
			c.Hidden = false
			c.Usage = "Print a shell completion script"
		},
		HideHelpCommand: true,
		Flags:           globalFlags(),
		Commands: append([]*cli.Command{
			a.imagesCommand(), a.inspectCommand(), a.resolveCommand(), a.pullCommand(),
			a.pinCommand(), a.refreshCommand(), a.checkCommand(), a.uninstallCommand(), a.configCommand(),
		}, a.serveCommands()...),
		Reader: a.In, Writer: a.Out, ErrWriter: a.Err,
		ExitErrHandler: func(context.Context, *cli.Command, error) {}, // run prints it
	}
	oneLineUsageErrors(root)
	return root
}

func globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{
			Name: "address", Aliases: []string{"a"}, Value: defaults.DefaultAddress,
			Usage: "`SOCKET` of containerd or of imagepin serve", Sources: cli.EnvVars("CONTAINERD_ADDRESS"),
		},
		&cli.StringFlag{
			Name: "namespace", Aliases: []string{"n"}, Value: "k8s.io",
			Usage: "containerd `NAMESPACE` of the CRI", Sources: cli.EnvVars(namespaces.NamespaceEnvVar),
		},
		&cli.StringFlag{
			Name: "output", Aliases: []string{"o"}, Value: outputTable, Usage: "output `FORMAT`: table or json",
			Validator: func(format string) error {
				if format != outputTable && format != outputJSON {
					return errors.New("must be table or json")
				}
				return nil
			},
		},
		&cli.DurationFlag{Name: "timeout", Usage: "give up after `DURATION`; 0s means no timeout"},
	}
}

// group is a command that has only subcommands.
func group(c *cli.Command) *cli.Command {
	c.Action = subcommandMissing
	return c
}

func subcommandMissing(_ context.Context, cmd *cli.Command) error {
	if cmd.Args().Present() {
		return fmt.Errorf("unknown command, see %s --help", cmd.FullName())
	}
	return cli.ShowSubcommandHelp(cmd)
}

// oneLineUsageErrors shortens errors about invalid flags to one line, without the help text.
func oneLineUsageErrors(cmd *cli.Command) {
	cmd.OnUsageError = func(_ context.Context, cmd *cli.Command, err error, _ bool) error {
		return fmt.Errorf("%w, see %s --help", err, cmd.FullName())
	}
	if cmd.Action == nil {
		cmd.Action = subcommandMissing
	}
	for _, c := range cmd.Commands {
		oneLineUsageErrors(c)
	}
}

// arguments returns the arguments of cmd, which must be as many as names. The error does not contain the arguments,
// because one could be a password.
func arguments(cmd *cli.Command, names ...string) ([]string, error) {
	if cmd.NArg() == len(names) {
		return cmd.Args().Slice(), nil
	}
	takes := "no arguments"
	if len(names) > 0 {
		takes = strings.Join(names, " ")
	}
	return nil, fmt.Errorf("%s takes %s, got %d arguments, see %s --help", cmd.FullName(), takes, cmd.NArg(), cmd.FullName())
}

// Flags of several commands.
func handlerFlag() cli.Flag {
	return &cli.StringFlag{Name: "handler", Usage: "runtime `HANDLER` whose platform and snapshotter to use; empty means the default handler"}
}

func scopeFlag(empty string) cli.Flag {
	return &cli.StringFlag{Name: "scope", Usage: "`SCOPE`: node, or that of a workload as \"imagepin pin ls\" prints it; empty means " + empty}
}

func noTruncFlag() cli.Flag {
	return &cli.BoolFlag{Name: "no-trunc", Usage: "do not truncate digests, and print exact times"}
}
