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
are errors. So are a snapshotter that is neither built into containerd nor in
proxy_plugins, and a platform that does not exist. A platform that this machine
cannot run is a warning.

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

// configReport is the result of config check.
type configReport struct {
	File    string        `json:"file"`
	Valid   bool          `json:"valid"`
	Verdict string        `json:"verdict"` // what a valid configuration means for imagepin
	Errors  []configError `json:"errors"`
	// Warnings are about a configuration that may not do what it is meant to.
	Warnings []string `json:"warnings"`
}

// configError is an error of a configuration. Section and Key are empty if it is of the whole file.
type configError struct {
	File    string `json:"file"`
	Section string `json:"section"`
	Key     string `json:"key"`
	Message string `json:"message"`
}

func (a *app) configCheck(_ context.Context, cmd *cli.Command) error {
	args, err := arguments(cmd, "FILE")
	if err != nil {
		return err
	}
	r := &configReport{File: args[0], Errors: []configError{}, Warnings: []string{}}
	if err = checkKind(r.File, cmd.Bool("serve")); err == nil && cmd.Bool("serve") {
		err = r.checkServe()
	} else if err == nil {
		err = r.check()
	}
	r.Valid = err == nil
	if err != nil && len(r.Errors) == 0 {
		r.Errors = append(r.Errors, configError{File: r.File, Message: err.Error()})
	}
	if err != nil && printsText(cmd) {
		return err
	}
	if err := a.print(cmd, r, func() error { return a.printConfigReport(r) }); err != nil {
		return err
	}
	if !r.Valid {
		return exitError(exitFailed)
	}
	return nil
}

func (a *app) printConfigReport(r *configReport) error {
	if _, err := fmt.Fprintf(a.Out, "%s: %s\n", r.File, r.Verdict); err != nil {
		return err
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(a.Err, "imagepin: warning: %s: %s\n", r.File, w)
	}
	return nil
}

// check checks the configuration of containerd.
func (r *configReport) check() error {
	c, err := loadConfig(r.File)
	if err != nil {
		return err
	}
	settings, warnings, err := c.check()
	r.Warnings = append(r.Warnings, warnings...)
	if err != nil {
		return r.invalid(err, c.fileOf)
	}
	r.Verdict = c.verdict(settings)
	return nil
}

// checkServe checks the configuration of imagepin serve.
func (r *configReport) checkServe() error {
	b, err := os.ReadFile(r.File)
	if err != nil {
		return err
	}
	c, err := imagepinconfig.ParseFile(b)
	if err == nil {
		err = errors.Join(c.UnknownPlatforms()...)
	}
	if err != nil {
		return r.invalid(err, func(string, string) string { return r.File })
	}
	r.Verdict = validity(c.Settings, "imagepin serve")
	return nil
}

// invalid adds the errors of a configuration. It returns an error with one line for each, which begins with its file.
func (r *configReport) invalid(err error, fileOf func(section, key string) string) error {
	var lines []string
	for _, one := range imagepinconfig.Errors(err) {
		e := configError{File: fileOf("", ""), Message: one.Error()}
		var key *imagepinconfig.KeyError
		if errors.As(one, &key) {
			e.Section, e.Key = key.Section, key.Path()
			e.File = fileOf(e.Section, e.Key)
		}
		r.Errors = append(r.Errors, e)
		lines = append(lines, e.File+": "+e.Message)
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

// check returns imagepin's settings and warnings, or what is wrong with the configuration.
func (c *config) check() (imagepinconfig.Settings, []string, error) {
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(c.Plugins)) {
		if strings.Contains(name, "imagepin") && name != imagepinconfig.Section {
			wrong = append(wrong, &imagepinconfig.KeyError{Section: name, Err: fmt.Errorf("unknown section (did you mean %q?)", imagepinconfig.Section)})
		}
	}
	settings, warnings, err := imagepinconfig.CheckPlugins(c.Plugins, c.snapshotterProxies())
	enabled := func(part string) bool { return !slices.Contains(c.DisabledPlugins, imagepinconfig.PartType+"."+part) }
	return settings, warnings, errors.Join(append(wrong, err, settings.CheckParts(enabled))...)
}

// verdict describes the effect of a valid configuration on imagepin.
func (c *config) verdict(s imagepinconfig.Settings) string {
	if slices.Contains(c.DisabledPlugins, imagepinconfig.Section) {
		return "OK for containerd, but imagepin is disabled (disabled_plugins)"
	}
	if _, ok := c.Plugins[imagepinconfig.Section]; !ok {
		return "OK for containerd, imagepin has no section and uses its defaults"
	}
	return validity(s, "containerd")
}

const configDefaultDescription = `Prints imagepin's section of containerd's configuration with the default of each
setting. All are optional. docs/configuration.md describes them.

With --serve, prints the configuration of imagepin serve (docs/standalone.md).
Leave out a setting that the running containerd reports, or set it to the same value
as there.

Examples:
  imagepin config default > /etc/containerd/conf.d/imagepin.toml
  imagepin config default --serve`

func (a *app) configDefaultCommand() *cli.Command {
	return &cli.Command{
		Name:        "default",
		Usage:       "Print the default of each setting",
		Description: configDefaultDescription,
		Flags:       []cli.Flag{serveFlag()},
		Action:      noArguments(a.configDefault),
	}
}

func (a *app) configDefault(_ context.Context, cmd *cli.Command) error {
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
	var table map[string]any
	if err := toml.Unmarshal(b, &table); err != nil {
		return err
	}
	return a.print(cmd, table, func() error {
		_, err := a.Out.Write(b)
		return err
	})
}
