// Package command implements the imagepin command: its subcommands, their calls of the control service in containerd,
// and their output.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/urfave/cli/v3"

	imagepinconfig "github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
	"github.com/imagepin/imagepin/version"
)

// Stdio has the input and output of a command. On terminals, a command draws progress bars and prompts for passwords.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// app is shared by all subcommands.
type app struct {
	Stdio
	now      func() time.Time
	interval time.Duration // of --watch
	// serveSocket is the default socket of imagepin serve, for hints.
	serveSocket string
	// parts are those of imagepin serve.
	parts node.Parts
	// noHeaders is --no-headers.
	noHeaders bool
}

// Run runs the command and returns its exit code. args begins with the name of the program. parts are those of
// imagepin serve.
func Run(ctx context.Context, stdio Stdio, parts node.Parts, args []string) int {
	a := &app{Stdio: stdio, now: time.Now, interval: watchInterval, serveSocket: imagepinconfig.DefaultServeAddress, parts: parts}
	return a.run(ctx, args)
}

func (a *app) run(ctx context.Context, args []string) int {
	err := a.root().Run(ctx, dashLast(args))
	var exit exitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(a.Err, "imagepin:", printableLines(err.Error()))
	}
	return exitCode(err)
}

// dashLast moves the argument "-", for standard input, after the flags: the parser drops what follows it. It leaves the "-" that
// is the value of a flag, and what completion passes.
func dashLast(args []string) []string {
	if slices.Contains(args, "--") || slices.Contains(args, completeName) {
		return args
	}
	for n := 1; n < len(args)-1; n++ {
		if before := args[n-1]; args[n] == "-" && (!strings.HasPrefix(before, "-") || strings.Contains(before, "=")) {
			return append(slices.Concat(args[:n], args[n+1:]), "--", "-")
		}
	}
	return args
}

const rootDescription = `imagepin keeps one image for each platform and snapshotter that pods need, and pins
tags to digests, if version_consistency or "imagepin pin set" says so. This command
calls imagepin over containerd's socket, or that of "imagepin serve" (--address).

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

Complete commands, flags and references in the shell (bash, zsh, fish, pwsh):
  source <(imagepin completion bash)

Exit codes of all commands:
  imagepin help exit-codes`

func (a *app) root() *cli.Command {
	root := &cli.Command{
		Name:            "imagepin",
		Usage:           "Pin image references to digests, and show images and pins",
		Version:         version.Version,
		Description:     rootDescription,
		HideHelpCommand: true,
		Flags:           a.globalFlags(),
		Commands: append([]*cli.Command{
			a.statusCommand(), a.imagesCommand(), a.psCommand(), a.inspectCommand(), a.resolveCommand(), a.diffCommand(), a.pullCommand(),
			a.pinCommand(), a.lockCommand(), a.bundleCommand(), a.applyCommand(), a.rollbackCommand(), a.limitRateCommand(), a.refreshCommand(), a.removeCommand(), a.pruneCommand(), a.duCommand(), a.eventsCommand(), a.checkCommand(), a.uninstallCommand(), a.configCommand(),
		}, append(append(a.serveCommands(), a.installCommands()...), a.completionCommand(), a.versionCommand(), a.helpCommand(), a.completeCommand())...),
		Reader: a.In, Writer: a.Out, ErrWriter: a.Err,
		ExitErrHandler: func(context.Context, *cli.Command, error) {}, // run prints it
	}
	oneLineUsageErrors(root)
	return root
}

func (a *app) globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{
			Name: "address", Aliases: []string{"a"}, Value: defaults.DefaultAddress,
			Usage: "`SOCKET` of containerd or of imagepin serve", Sources: cli.EnvVars("CONTAINERD_ADDRESS"),
		},
		&cli.StringFlag{
			Name: "namespace", Aliases: []string{"n"}, Value: "k8s.io",
			Usage: "containerd `NAMESPACE` of the CRI", Sources: cli.EnvVars(namespaces.NamespaceEnvVar),
		},
		outputFlag(),
		&cli.BoolFlag{Name: "no-headers", Destination: &a.noHeaders, Usage: "print tables without their first line"},
		&cli.DurationFlag{Name: "timeout", Usage: "give up after `DURATION`; 0s means no timeout"},
	}
}

// group is a command that has only subcommands.
func group(c *cli.Command) *cli.Command {
	c.Action = subcommandMissing
	return c
}

// oneLineUsageErrors shortens errors about invalid flags to one line.
func oneLineUsageErrors(cmd *cli.Command) {
	cmd.OnUsageError = usageError
	if cmd.Action == nil {
		cmd.Action = subcommandMissing
	}
	for _, c := range cmd.Commands {
		oneLineUsageErrors(c)
	}
}

// arguments returns the arguments of cmd, which must be as many as names; the last may be optional, in brackets. The error
// does not contain the arguments, because one could be a password.
func arguments(cmd *cli.Command, names ...string) ([]string, error) {
	least := len(names)
	if least > 0 && strings.HasPrefix(names[least-1], "[") {
		least--
	}
	if least <= cmd.NArg() && cmd.NArg() <= len(names) {
		return cmd.Args().Slice(), nil
	}
	takes := "no arguments"
	if len(names) > 0 {
		takes = strings.Join(names, " ")
	}
	return nil, fmt.Errorf("%s takes %s, got %s, see %s --help", cmd.FullName(), takes, count(int64(cmd.NArg()), "argument"), cmd.FullName())
}

// noArguments returns the action of a command without arguments.
func noArguments(action cli.ActionFunc) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		if _, err := arguments(cmd); err != nil {
			return err
		}
		return action(ctx, cmd)
	}
}

// Flags of several commands.
func handlerFlag() cli.Flag {
	return &cli.StringFlag{Name: "handler", Usage: "runtime `HANDLER` whose platform and snapshotter to use; empty means the default handler"}
}

const (
	// scopeNode is the scope of a flag without a value, for commands that change one pin.
	scopeNode = "node"
	// scopeAll selects the pins of all scopes.
	scopeAll = "all"
)

const scopeUsage = "`SCOPE` of the pin: node, or that of a workload as \"imagepin pin ls\" prints it"

// scopeFlag selects the scope of one pin. otherwise is its value in commands that change a pin, and "" in others, whose usage
// says which pin they use.
func scopeFlag(otherwise, usage string) cli.Flag {
	return &cli.StringFlag{Name: "scope", Value: otherwise, Usage: scopeUsage + usage, Validator: checkScope}
}

// scopesFlag selects one scope or all.
func scopesFlag() cli.Flag {
	return &cli.StringFlag{Name: "scope", Value: scopeAll, Usage: scopeUsage + ", or all", Validator: checkScope}
}

// checkScope rejects a scope that is empty, such as that of a variable in a script that is not set.
func checkScope(scope string) error {
	if scope == "" {
		return errors.New("a scope is not empty")
	}
	return nil
}

// scopes returns the value of scopesFlag for a request, in which an empty scope means all.
func scopes(cmd *cli.Command) string {
	if scope := cmd.String("scope"); scope != scopeAll {
		return scope
	}
	return ""
}

func noTruncFlag() cli.Flag {
	return &cli.BoolFlag{Name: "no-trunc", Usage: "do not truncate digests, and print exact times"}
}
