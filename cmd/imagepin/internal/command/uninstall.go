package command

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const uninstallDescription = `Removes every io.imagepin.* label, lease and pin from containerd's metadata, so
that stock containerd runs on what is left: image records, content and
snapshots stay, and so do running pods. Without --yes it only says what it would
remove.

From then on imagepin writes nothing more, and the CRI is containerd's own,
until containerd is restarted. Put stock containerd in its place before that
(or disable the plugin): imagepin would adopt the images again.

Pins are gone for good. To be able to go back to them, keep what
"imagepin pin ls -o json" prints.

Exit code:
  0  it is uninstalled
  1  it is not: --yes was not given, or it failed

Examples:
  imagepin uninstall
  imagepin uninstall --yes`

func (a *app) uninstallCommand() *cli.Command {
	return &cli.Command{
		Name:        "uninstall",
		Usage:       "Remove all that imagepin has written to containerd's metadata",
		Description: uninstallDescription,
		Flags:       []cli.Flag{&cli.BoolFlag{Name: "yes", Usage: "do it"}},
		Action:      a.uninstall,
	}
}

func (a *app) uninstall(ctx context.Context, cmd *cli.Command) error {
	if _, err := arguments(cmd); err != nil {
		return err
	}
	var response *api.UninstallResponse
	dry := !cmd.Bool("yes")
	err := a.call(ctx, cmd, func(ctx context.Context, c api.ControlClient) (err error) {
		response, err = c.Uninstall(ctx, &api.UninstallRequest{DryRun: dry})
		return err
	})
	if err != nil {
		return err
	}
	if err := a.print(cmd, response, func() error { return a.printUninstall(response, dry) }); err != nil {
		return err
	}
	if dry {
		return exitError(exitFailed)
	}
	return nil
}

func (a *app) printUninstall(r *api.UninstallResponse, dry bool) error {
	verb, then := "Removed", "imagepin writes nothing more. Go on with stock containerd, on its own socket: imagepin, started again, would adopt the images again."
	if dry {
		verb, then = "Would remove", "Nothing was changed. Do it with --yes."
	}
	_, err := fmt.Fprintf(a.Out, "%s %d labels on %d image records, %d pins and %d leases.\n%s\n",
		verb, r.GetLabels(), r.GetRecords(), r.GetPins(), r.GetLeases(), then)
	return err
}
