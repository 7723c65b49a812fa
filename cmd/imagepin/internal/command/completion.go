package command

import (
	"context"
	"embed"
	"fmt"

	"github.com/urfave/cli/v3"
)

//go:embed completion
var completionScripts embed.FS

const completionDescription = `Prints a script that completes commands, flags and their values, references,
runtime handlers and scopes. References, handlers and scopes are those of the
node, if it answers within a second.

Examples:
  source <(imagepin completion bash)
  imagepin completion bash > /etc/bash_completion.d/imagepin`

// shells are the shells that completion supports, with an example of where the script goes.
var shells = []struct{ name, title, example string }{
	{"bash", "bash", "source <(imagepin completion bash)    # in ~/.bashrc"},
	{"zsh", "zsh", `imagepin completion zsh > "${fpath[1]}/_imagepin"`},
	{"fish", "fish", "imagepin completion fish > ~/.config/fish/completions/imagepin.fish"},
	{"pwsh", "PowerShell", "imagepin completion pwsh >> $PROFILE"},
}

func (a *app) completionCommand() *cli.Command {
	c := &cli.Command{
		Name:        "completion",
		Usage:       "Print a shell completion script",
		Description: completionDescription,
	}
	for _, shell := range shells {
		c.Commands = append(c.Commands, &cli.Command{
			Name:        shell.name,
			Usage:       "Print the completion script for " + shell.title,
			Description: "Prints the completion script for " + shell.title + ".\n\nExamples:\n  " + shell.example,
			Action:      func(_ context.Context, cmd *cli.Command) error { return a.printCompletion(cmd) },
		})
	}
	return group(c)
}

func (a *app) printCompletion(cmd *cli.Command) error {
	if _, err := arguments(cmd); err != nil {
		return err
	}
	script, err := completionScripts.ReadFile("completion/" + cmd.Name)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.Out, "%s", script)
	return err
}
