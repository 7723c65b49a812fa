//go:build unix

package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v3"

	imagepinconfig "github.com/imagepin/imagepin/pkg/imagepin/config"
	imagepinserve "github.com/imagepin/imagepin/pkg/imagepin/serve"
)

const serveDescription = `Serves the CRI on its own socket, in front of an unmodified containerd. Set
kubelet's containerRuntimeEndpoint to this socket. Calls that are not about
images are forwarded to containerd.

If containerd is not running or stops, imagepin waits for it. imagepin takes its
settings from the running containerd where containerd reports them, and otherwise
from the file: "imagepin config default --serve" prints them.

Signals:
  SIGHUP   reload the file; an invalid file changes nothing
  SIGTERM  stop after the running calls, within at most 10 seconds

It notifies systemd when it is ready (Type=notify), and supports socket
activation.

Examples:
  imagepin serve
  imagepin serve --config /etc/imagepin/config.toml
  imagepin images --address /run/imagepin/imagepin.sock`

// defaultServeConfig is the default path of serve's configuration.
const defaultServeConfig = "/etc/imagepin/config.toml"

func (a *app) serveCommands() []*cli.Command {
	return []*cli.Command{{
		Name:        "serve",
		Usage:       "Serve the CRI in front of a containerd without imagepin",
		Description: serveDescription,
		Flags: []cli.Flag{&cli.StringFlag{
			Name: "config", Aliases: []string{"c"}, Value: defaultServeConfig, Usage: "configuration `FILE`; the default file is optional",
		}},
		Action: noArguments(a.serve),
	}}
}

func (a *app) serve(ctx context.Context, cmd *cli.Command) error {
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	load := func() (*imagepinconfig.ServeConfig, error) {
		return readServeConfig(cmd.String("config"), !cmd.IsSet("config"))
	}
	return imagepinserve.Run(ctx, imagepinserve.Config{Load: load, Reload: reload, Parts: a.parts})
}

// readServeConfig reads the configuration of serve. A file that may be missing has the defaults.
func readServeConfig(path string, mayBeMissing bool) (*imagepinconfig.ServeConfig, error) {
	b, err := os.ReadFile(path)
	if err != nil && (!mayBeMissing || !os.IsNotExist(err)) {
		return nil, err
	}
	file, err := imagepinconfig.ParseFile(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return file, nil
}
