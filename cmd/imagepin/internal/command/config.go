package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/urfave/cli/v3"

	imagepinconfig "github.com/imagepin/imagepin/pkg/imagepin/config"
)

const configDescription = `Works on files, without a containerd.

Examples:
  imagepin config check /etc/containerd/config.toml
  imagepin config default`

func (a *app) configCommand() *cli.Command {
	return group(&cli.Command{
		Name:        "config",
		Usage:       "Check a configuration file, print the defaults",
		Description: configDescription,
		Commands:    []*cli.Command{a.configCheckCommand(), a.configDefaultCommand()},
	})
}

const configCheckDescription = `Reads containerd's configuration, with the files that it imports, and checks
imagepin's section as containerd would at its start: a key that does not exist
and a value that cannot be are errors. Whether snapshotters are there is not
checked.

Exit code:
  0  it is right
  1  it is not; the error names section and key

With --serve, the file is that of imagepin serve. Whether it fits the running
containerd is not checked.

Examples:
  imagepin config check /etc/containerd/config.toml
  imagepin config check new.toml && install new.toml /etc/containerd/config.toml
  imagepin config check --serve /etc/imagepin/config.toml`

func servedFlag() cli.Flag {
	return &cli.BoolFlag{Name: "serve", Usage: "the configuration is that of imagepin serve"}
}

func (a *app) configCheckCommand() *cli.Command {
	return &cli.Command{
		Name:        "check",
		Usage:       "Check containerd's configuration file, without a containerd",
		ArgsUsage:   "FILE",
		Description: configCheckDescription,
		Flags:       []cli.Flag{servedFlag()},
		Action:      a.configCheck,
	}
}

func (a *app) configCheck(_ context.Context, cmd *cli.Command) error {
	args, err := arguments(cmd, "FILE")
	if err != nil {
		return err
	}
	if cmd.Bool("serve") {
		return a.configCheckServed(args[0])
	}
	c, err := loadConfig(args[0])
	if err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	_, err = fmt.Fprintf(a.Out, "%s: %s\n", args[0], c.verdict())
	return err
}

func (a *app) configCheckServed(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if _, err := imagepinconfig.ParseFile(b); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	_, err = fmt.Fprintf(a.Out, "%s: right\n", path)
	return err
}

// check is what is wrong with the configuration.
func (c *config) check() error {
	var wrong []error
	for name := range c.Plugins {
		if strings.Contains(name, "imagepin") && name != imagepinconfig.Section {
			wrong = append(wrong, fmt.Errorf("[plugins.%q]: there is no such section, imagepin's is %q", name, imagepinconfig.Section))
		}
	}
	return errors.Join(append(wrong, imagepinconfig.CheckPlugins(c.Plugins))...)
}

// verdict says what a configuration that is right means for imagepin.
func (c *config) verdict() string {
	for _, uri := range c.DisabledPlugins {
		if uri == imagepinconfig.Section {
			return "right, but imagepin is disabled (disabled_plugins)"
		}
	}
	if _, ok := c.Plugins[imagepinconfig.Section]; !ok {
		return "right, imagepin has no section and runs with its defaults"
	}
	return "right"
}

const configDefaultDescription = `Prints imagepin's section of containerd's configuration with every key and its
default. Nothing of it is needed. docs/configuration.md says what the keys mean.

With --serve, prints the configuration of imagepin serve (docs/standalone.md). A
key that the running containerd tells is to be left out, or has to be the same
there.

Examples:
  imagepin config default > /etc/containerd/conf.d/imagepin.toml
  imagepin config default --serve`

func (a *app) configDefaultCommand() *cli.Command {
	return &cli.Command{
		Name:        "default",
		Usage:       "Print every key with its default",
		Description: configDefaultDescription,
		Flags:       []cli.Flag{servedFlag()},
		Action:      a.configDefault,
	}
}

func (a *app) configDefault(_ context.Context, cmd *cli.Command) error {
	if _, err := arguments(cmd); err != nil {
		return err
	}
	var file any = struct {
		Version int                              `toml:"version"`
		Plugins map[string]imagepinconfig.Config `toml:"plugins"`
	}{3, map[string]imagepinconfig.Config{imagepinconfig.Section: imagepinconfig.DefaultConfig()}}
	if cmd.Bool("serve") {
		served, err := imagepinconfig.DefaultFile()
		if err != nil {
			return err
		}
		file = served
	}
	b, err := toml.Marshal(file)
	if err != nil {
		return err
	}
	_, err = a.Out.Write(b)
	return err
}
