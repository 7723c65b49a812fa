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

const serveDescription = `Serves the CRI on a socket of its own, in front of a containerd that is as its
distribution made it. kubelet's containerRuntimeEndpoint is this socket then.
What is not about images is passed on.

A containerd that is not there yet, or goes away, is waited for. What a running
containerd tells of its configuration is read from it, the rest from the file:
"imagepin config default --serve" prints every key.

Signals:
  SIGHUP   read the file again; one that is wrong changes nothing
  SIGTERM  stop, after the calls that are under way, for at most 10 seconds

It tells systemd when it is ready (Type=notify), and takes its socket (socket
activation).

Examples:
  imagepin serve
  imagepin serve --config /etc/imagepin/config.toml
  imagepin images --address /run/imagepin/imagepin.sock`

// servedConfig is where the configuration is that serve reads.
const servedConfig = "/etc/imagepin/config.toml"

func (a *app) serveCommands() []*cli.Command {
	return []*cli.Command{{
		Name:        "serve",
		Usage:       "Serve the CRI in front of a containerd without imagepin",
		Description: serveDescription,
		Flags: []cli.Flag{&cli.StringFlag{
			Name: "config", Aliases: []string{"c"}, Value: servedConfig, Usage: "`FILE` with the configuration; the default one may be missing",
		}},
		Action: a.serve,
	}}
}

func (a *app) serve(ctx context.Context, cmd *cli.Command) error {
	if _, err := arguments(cmd); err != nil {
		return err
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	load := func() (*imagepinconfig.ServeConfig, error) { return readServed(cmd.String("config"), !cmd.IsSet("config")) }
	return imagepinserve.Run(ctx, imagepinserve.Config{Load: load, Reload: reload})
}

// readServed reads a configuration of serve. One that may be missing has the
// defaults then.
func readServed(path string, mayBeMissing bool) (*imagepinconfig.ServeConfig, error) {
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
