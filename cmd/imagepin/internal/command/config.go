package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/urfave/cli/v3"

	imagepinconfig "github.com/imagepin/imagepin/pkg/imagepin/config"
)

const configDescription = `Works on files. containerd does not need to run.

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

const configCheckDescription = `Reads containerd's configuration and the files that it imports, and checks
imagepin's section as containerd does at startup: unknown keys and invalid values
are errors. It does not check whether the snapshotters exist.

Exit code:
  0  the configuration is valid
  1  the configuration is invalid; each error is a line with the file and the key

With --serve, FILE is the configuration of imagepin serve. It is not compared
with the configuration of the running containerd. A file that has keys of only the
other program is an error.

Examples:
  imagepin config check /etc/containerd/config.toml
  imagepin config check new.toml && install new.toml /etc/containerd/config.toml
  imagepin config check --serve /etc/imagepin/config.toml`

func serveFlag() cli.Flag {
	return &cli.BoolFlag{Name: "serve", Usage: "use the configuration of imagepin serve"}
}

func (a *app) configCheckCommand() *cli.Command {
	return &cli.Command{
		Name:        "check",
		Usage:       "Check containerd's configuration file",
		ArgsUsage:   "FILE",
		Description: configCheckDescription,
		Flags:       []cli.Flag{serveFlag()},
		Action:      a.configCheck,
	}
}

func (a *app) configCheck(_ context.Context, cmd *cli.Command) error {
	args, err := arguments(cmd, "FILE")
	if err != nil {
		return err
	}
	if err := checkKind(args[0], cmd.Bool("serve")); err != nil {
		return err
	}
	if cmd.Bool("serve") {
		return a.configCheckServe(args[0])
	}
	c, err := loadConfig(args[0])
	if err != nil {
		return err
	}
	settings, err := c.check()
	if err != nil {
		return listErrors(err, c.fileOf)
	}
	_, err = fmt.Fprintf(a.Out, "%s: %s\n", args[0], c.verdict(settings))
	return err
}

func (a *app) configCheckServe(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	c, err := imagepinconfig.ParseFile(b)
	if err != nil {
		return listErrors(err, func(string, string) string { return path })
	}
	_, err = fmt.Fprintf(a.Out, "%s: %s\n", path, validity(c.Settings, "imagepin serve"))
	return err
}

// listErrors returns an error with one line for each error of a configuration, which begins with its file.
func listErrors(err error, fileOf func(section, key string) string) error {
	var lines []string
	for _, one := range imagepinconfig.Errors(err) {
		file := fileOf("", "")
		var key *imagepinconfig.KeyError
		if errors.As(one, &key) {
			file = fileOf(key.Section, key.Path())
		}
		lines = append(lines, file+": "+one.Error())
	}
	return errors.New(strings.Join(lines, "\n"))
}

// validity describes settings that are valid in a file of a program.
func validity(s imagepinconfig.Settings, program string) string {
	if unused := s.UnusedCluster(); unused != "" {
		return "OK for " + program + ", but " + unused
	}
	return "OK for " + program
}

// check returns imagepin's settings, or what is wrong with the configuration.
func (c *config) check() (imagepinconfig.Settings, error) {
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(c.Plugins)) {
		if strings.Contains(name, "imagepin") && name != imagepinconfig.Section {
			wrong = append(wrong, &imagepinconfig.KeyError{Section: name, Err: fmt.Errorf("unknown section (did you mean %q?)", imagepinconfig.Section)})
		}
	}
	settings, err := imagepinconfig.CheckPlugins(c.Plugins)
	return settings, errors.Join(append(wrong, err)...)
}

// verdict describes the effect of a valid configuration on imagepin.
func (c *config) verdict(s imagepinconfig.Settings) string {
	for _, uri := range c.DisabledPlugins {
		if uri == imagepinconfig.Section {
			return "OK for containerd, but imagepin is disabled (disabled_plugins)"
		}
	}
	if _, ok := c.Plugins[imagepinconfig.Section]; !ok {
		return "OK for containerd, imagepin has no section and uses its defaults"
	}
	return validity(s, "containerd")
}

const configDefaultDescription = `Prints imagepin's section of containerd's configuration with all keys and their
defaults. All keys are optional. docs/configuration.md describes them.

With --serve, prints the configuration of imagepin serve (docs/standalone.md).
Leave out a key that the running containerd reports, or set it to the same value
as there.

Examples:
  imagepin config default > /etc/containerd/conf.d/imagepin.toml
  imagepin config default --serve`

func (a *app) configDefaultCommand() *cli.Command {
	return &cli.Command{
		Name:        "default",
		Usage:       "Print all keys with their defaults",
		Description: configDefaultDescription,
		Flags:       []cli.Flag{serveFlag()},
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
