package command

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/imagepin/imagepin/internal/similar"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// undefinedFlag begins the error of urfave/cli about an unknown flag.
const undefinedFlag = "flag provided but not defined: -"

// oneDash matches a long flag in an error of urfave/cli about its value. It has one dash too few.
var oneDash = regexp.MustCompile(`( for flag )-([a-z][a-z-]+: )`)

// maxEchoed limits how much of a wrong argument an error repeats, in bytes.
const maxEchoed = 64

// maxUsageError limits an error about the value of a flag, which it repeats, in bytes.
const maxUsageError = 512

// usageError shortens an error about invalid flags to one line, without the help text.
func usageError(_ context.Context, cmd *cli.Command, err error, _ bool) error {
	name, unknown := strings.CutPrefix(err.Error(), undefinedFlag)
	if !unknown {
		text := oneDash.ReplaceAllString(err.Error(), "${1}--${2}")
		return errors.New(imagepin.Bound(text, maxUsageError) + ", see " + cmd.FullName() + " --help")
	}
	name = strings.TrimLeft(name, "-")
	suggestion := cli.SuggestFlag(visibleFlags(cmd), name, false)
	return fmt.Errorf("unknown flag %s%s, see %s --help", echo(dashed(name)), didYouMean(dashed(name), suggestion), cmd.FullName())
}

// subcommandMissing is the action of a command that has only subcommands.
func subcommandMissing(_ context.Context, cmd *cli.Command) error {
	if cmd.Args().Present() {
		return unknownCommand(cmd, cmd.Args().First())
	}
	if cmd == cmd.Root() {
		return cli.ShowRootCommandHelp(cmd)
	}
	return cli.ShowSubcommandHelp(cmd)
}

// unknownCommand returns the error for a name that is not a subcommand of cmd.
func unknownCommand(cmd *cli.Command, name string) error {
	group := strings.TrimPrefix(strings.TrimPrefix(cmd.FullName(), cmd.Root().Name), " ")
	meant := didYouMean(name, cli.SuggestCommand(visibleCommands(cmd), name))
	if other, ok := otherWords[group][name]; ok {
		meant = fmt.Sprintf(" (did you mean %q?)", cmd.Root().Name+" "+other)
	}
	return fmt.Errorf("unknown command %s%s, see %s --help", echo(name), meant, cmd.FullName())
}

// didYouMean returns a suggestion for a name that was typed, in brackets. urfave/cli always suggests the most similar
// name; one that is not a typing error away is another word.
func didYouMean(typed, suggestion string) string {
	if len(typed) > maxEchoed || similar.Distance(typed, suggestion) > 1+len(typed)/4 {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", suggestion)
}

// echo quotes what the user typed, and truncates it.
func echo(typed string) string {
	if len(typed) > maxEchoed {
		typed = typed[:maxEchoed] + "…"
	}
	return fmt.Sprintf("%q", typed)
}

func dashed(flag string) string {
	if len(flag) == 1 {
		return "-" + flag
	}
	return "--" + flag
}

// visibleCommands returns the subcommands of cmd that its help lists.
func visibleCommands(cmd *cli.Command) []*cli.Command {
	return slices.DeleteFunc(slices.Clone(cmd.Commands), func(c *cli.Command) bool { return c.Hidden })
}

// visibleFlags returns the flags of cmd, including global flags.
func visibleFlags(cmd *cli.Command) []cli.Flag {
	var flags []cli.Flag
	for _, c := range cmd.Lineage() {
		flags = append(flags, c.Flags...)
	}
	return flags
}
