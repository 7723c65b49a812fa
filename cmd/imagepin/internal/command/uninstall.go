package command

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const uninstallDescription = `Removes every io.imagepin.* label, lease and pin from containerd's metadata.
Image records, content, snapshots and running pods stay, and stock containerd can
use them. Without --yes it only prints what it would remove.

After that, imagepin writes nothing more, and the CRI is containerd's own, until
containerd restarts. Before the restart, replace imagepin's containerd with stock
containerd, or disable the plugin: otherwise imagepin adopts the images again.

Pins are lost permanently. To be able to set them again, save the output of
"imagepin pin ls -o json".

With --root, it also removes what "imagepin install" has put on the node, lets
kubelet and containerd.service use stock containerd again, and waits until they
are healthy. If they are not within --wait, it is rolled back.

Exit code:
  0  uninstalled
  1  not uninstalled: --yes is missing, or it failed

Examples:
  imagepin uninstall
  imagepin uninstall --yes
  imagepin uninstall --root / --yes`

func (a *app) uninstallCommand() *cli.Command {
	return &cli.Command{
		Name:        "uninstall",
		Usage:       "Remove everything that imagepin has written to containerd's metadata",
		Description: uninstallDescription,
		Flags:       append([]cli.Flag{&cli.BoolFlag{Name: "yes", Usage: "uninstall; without it, only print what would be removed"}}, changeFlags()...),
		Action:      noArguments(a.uninstall),
	}
}

func (a *app) uninstall(ctx context.Context, cmd *cli.Command) error {
	if cmd.String("root") != "" {
		return a.uninstallFrom(ctx, cmd)
	}
	dry := !cmd.Bool("yes")
	_, err := show(ctx, a, cmd, api.ControlClient.Uninstall, &api.UninstallRequest{DryRun: dry}, func(_ style, r *api.UninstallResponse) error { return a.printUninstall(r, dry) })
	if err == nil && dry {
		return exitError(exitFailed)
	}
	return err
}

func (a *app) printUninstall(r *api.UninstallResponse, dry bool) error {
	verb, then := "Removed", "imagepin is inactive. Switch to stock containerd, on its own socket: if imagepin starts again, it adopts the images again."
	if dry {
		verb, then = "Would remove", "Nothing was changed. To uninstall, add --yes."
	}
	_, err := fmt.Fprintf(a.Out, "%s %s on %s, %s and %s.\n%s\n", verb,
		count(r.GetLabels(), "label"), count(r.GetRecords(), "image record"), count(r.GetPins(), "pin"), count(r.GetLeases(), "lease"), then)
	return err
}
