// Package command is the imagepin command: its subcommands, how they call the
// control service in containerd, and how they print what it says.
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

	"github.com/imagepin/imagepin/version"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1
	exitChanged = 10 // refresh: it worked, and something is another digest now
)

// Stdio is where a command reads and writes. Progress bars are drawn, and
// passwords asked for, where these are terminals.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// exitError ends the command with a code and prints nothing: what there is to
// say has been printed.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// app is what all subcommands share.
type app struct {
	Stdio
	now func() time.Time
}

// Run runs the command and gives its exit code. args begin with the name of
// the program.
func Run(ctx context.Context, stdio Stdio, args []string) int {
	return (&app{Stdio: stdio, now: time.Now}).run(ctx, args)
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

const rootDescription = `imagepin decides which digest an image reference means on this node, and keeps
one image of it for each platform and snapshotter that pods need. This command
speaks to the imagepin in containerd, over containerd's socket; or to "imagepin
serve", which runs beside a containerd without it, over that one's (--address).

What is here, and which digest a tag means:
  imagepin images
  imagepin inspect docker.io/library/nginx:1.29

What a pull would do now, and why; and the pull itself:
  imagepin resolve docker.io/library/nginx:1.29
  imagepin pull docker.io/library/nginx:1.29 --handler kata

Hold a tag at a digest, move it on, let it go:
  imagepin pin set docker.io/library/nginx:1.29 sha256:5f1…
  imagepin refresh docker.io/library/nginx:1.29
  imagepin pin rm docker.io/library/nginx:1.29

Completion of commands and flags (bash, zsh, fish, pwsh):
  source <(imagepin completion bash)`

func (a *app) root() *cli.Command {
	root := &cli.Command{
		Name:                  "imagepin",
		Usage:                 "See and steer which digest an image reference means on this node",
		Version:               version.Version,
		Description:           rootDescription,
		EnableShellCompletion: true,
		ConfigureShellCompletionCommand: func(c *cli.Command) {
			c.Hidden = false
			c.Usage = "Print a script that completes commands and flags in a shell"
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
			Usage: "containerd's `SOCKET`, or that of imagepin serve", Sources: cli.EnvVars("CONTAINERD_ADDRESS"),
		},
		&cli.StringFlag{
			Name: "namespace", Aliases: []string{"n"}, Value: "k8s.io",
			Usage: "containerd's `NAMESPACE`, that of the CRI", Sources: cli.EnvVars(namespaces.NamespaceEnvVar),
		},
		&cli.StringFlag{
			Name: "output", Aliases: []string{"o"}, Value: outputTable, Usage: "`FORMAT` of what is printed: table or json",
			Validator: func(format string) error {
				if format != outputTable && format != outputJSON {
					return errors.New("it is table or json")
				}
				return nil
			},
		},
		&cli.DurationFlag{Name: "timeout", Usage: "give up after `DURATION`; 0s is never"},
	}
}

// group is a command that only has subcommands.
func group(c *cli.Command) *cli.Command {
	c.Action = subcommandMissing
	return c
}

func subcommandMissing(_ context.Context, cmd *cli.Command) error {
	if cmd.Args().Present() {
		return fmt.Errorf("there is no such command, see %s --help", cmd.FullName())
	}
	return cli.ShowSubcommandHelp(cmd)
}

// oneLineUsageErrors has wrong flags said in one line, not with the whole help.
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

// arguments gives the arguments of cmd, which are as many as it names. Wrong
// ones are not repeated: they could be a password.
func arguments(cmd *cli.Command, names ...string) ([]string, error) {
	if cmd.NArg() == len(names) {
		return cmd.Args().Slice(), nil
	}
	takes := "no arguments"
	if len(names) > 0 {
		takes = strings.Join(names, " ")
	}
	return nil, fmt.Errorf("%s takes %s, but got %d arguments, see %s --help", cmd.FullName(), takes, cmd.NArg(), cmd.FullName())
}

// Flags that several commands have.
func handlerFlag() cli.Flag {
	return &cli.StringFlag{Name: "handler", Usage: "for the platform and snapshotter of runtime `HANDLER`; empty is the default one"}
}

func scopeFlag(empty string) cli.Flag {
	return &cli.StringFlag{Name: "scope", Usage: "`SCOPE`: node, or workload/<namespace>/<label>=<value>; empty is " + empty}
}

func noTruncFlag() cli.Flag {
	return &cli.BoolFlag{Name: "no-trunc", Usage: "print whole digests and times"}
}
