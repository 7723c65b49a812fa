//go:build unix

package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/imagepin/imagepin/cmd/imagepin/internal/install"
)

const installDescription = `Installs imagepin on the node whose root directory is --root, and starts it:
  --mode plugin  a containerd with imagepin, instead of the node's
  --mode serve   imagepin serve, beside the node's containerd; kubelet's
                 containerRuntimeEndpoint is set to its socket
The node needs systemd. The files are written to /opt/imagepin and /etc. If
imagepin is installed already, its files are replaced if they differ.

The node's systemd makes the change, as imagepin-install.service: it goes on if
this command is killed. If the CRI or kubelet does not come back within --wait,
the change is rolled back. Running pods are not affected.

Remove it with: imagepin uninstall --root DIR --yes

Examples:
  imagepin install --root / --from ./imagepin --mode serve
  imagepin install --root /host --mode plugin --stay`

func (a *app) installCommands() []*cli.Command {
	return []*cli.Command{
		{
			Name:        "install",
			Usage:       "Install imagepin on a node, or upgrade it",
			Description: installDescription,
			Flags: append(changeFlags(),
				&cli.StringFlag{Name: "mode", Usage: "`MODE`: plugin or serve"},
				&cli.StringFlag{Name: "from", Value: "/", Usage: "`DIR` with the files of the packages, as in this command's image"},
				&cli.StringFlag{Name: "config", Usage: "configuration `FILE` of imagepin serve, for /etc/imagepin/config.toml; empty keeps that"},
				&cli.BoolFlag{Name: "no-kubelet", Usage: "do not change or check kubelet"},
			),
			Action: noArguments(a.install),
		},
		{
			Name: install.ApplyCommand, Usage: "Make a change of install or uninstall on this node", Hidden: true,
			Action: func(ctx context.Context, cmd *cli.Command) error {
				args, err := arguments(cmd, "OPTIONS")
				if err != nil {
					return err
				}
				return install.Main(ctx, args[0], a.Out)
			},
		},
	}
}

// changeFlags are the flags of the commands that change a node.
func changeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "root", Usage: "root `DIR` of the node"},
		&cli.DurationFlag{Name: "wait", Value: 2 * time.Minute, Usage: "`DURATION` that each restarted service may take until it is healthy"},
		&cli.BoolFlag{Name: "stay", Usage: "do not exit after a success, until a signal, as the container of a DaemonSet"},
	}
}

func (a *app) install(ctx context.Context, cmd *cli.Command) error {
	if cmd.String("root") == "" {
		return errors.New("--root is required: / for this node")
	}
	mode := install.Mode(cmd.String("mode"))
	if mode == "" {
		return fmt.Errorf("--mode is required: %s or %s", install.Plugin, install.Serve)
	}
	if mode != install.Plugin && mode != install.Serve {
		return fmt.Errorf("--mode %q: it must be %s or %s", mode, install.Plugin, install.Serve)
	}
	if cmd.IsSet("config") && mode != install.Serve {
		return fmt.Errorf("--config is of --mode %s: with --mode %s, imagepin is configured in containerd's configuration", install.Serve, mode)
	}
	return a.changeNode(ctx, cmd, install.Request{
		Options: install.Options{Action: install.Install, Mode: mode, NoKubelet: cmd.Bool("no-kubelet")},
		From:    cmd.String("from"), Config: cmd.String("config"),
	})
}

// uninstallFrom is uninstall with --root.
func (a *app) uninstallFrom(ctx context.Context, cmd *cli.Command) error {
	if !cmd.Bool("yes") {
		return errors.New("--root removes imagepin from the node: to do that, add --yes")
	}
	return a.changeNode(ctx, cmd, install.Request{Options: install.Options{Action: install.Uninstall}})
}

func (a *app) changeNode(ctx context.Context, cmd *cli.Command, r install.Request) error {
	r.Root, r.Wait, r.Out = cmd.String("root"), cmd.Duration("wait"), a.Out
	if r.Wait <= 0 {
		return fmt.Errorf("--wait %s: it must be positive", r.Wait)
	}
	limited, cancel := withTimeout(ctx, cmd.Duration("timeout"))
	defer cancel()
	if err := r.Run(limited); err != nil {
		return err
	}
	if cmd.Bool("stay") {
		<-ctx.Done()
	}
	return nil
}
