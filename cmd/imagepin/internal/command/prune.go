package command

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// pruneAge is how long an image is kept after its last use, as kubelet's imageMinimumGCAge: a pod whose image has been
// pulled may not have a container yet.
const pruneAge = 2 * time.Minute

const pruneDescription = `Removes the images that nothing uses: no container, sandbox or image volume, and
no pin. It keeps the sandbox image, and images that kubelet sees as "pinned". Without
--yes it only prints what it would remove.

--older-than counts from the last use: a pull for a pod, or the end of the last
container or image volume. After a restart of imagepin, it is known to the hour.

The size is that of the images, compressed as in the registry. Layers that other
images share stay on the disk.

Exit code:
  0  pruned, or nothing to prune
  1  not pruned: --yes is missing, or it failed

Examples:
  imagepin prune
  imagepin prune --yes
  imagepin prune --yes --older-than 24h --handler kata
  imagepin prune --pinned    # also images that pins need, but do not retain`

func (a *app) pruneCommand() *cli.Command {
	return &cli.Command{
		Name:        "prune",
		Usage:       "Remove the images that nothing uses",
		Description: pruneDescription,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "yes", Usage: "prune; without it, only print what would be removed"},
			&cli.DurationFlag{Name: "older-than", Value: pruneAge, Usage: "only images that were last used, and became ready, more than `DURATION` ago", Validator: notNegative},
			&cli.StringFlag{Name: "handler", Usage: "only images for runtime `HANDLER`; empty means all"},
			&cli.BoolFlag{Name: "pinned", Usage: "also images that a pin needs, but does not retain; the next pull fetches them again, if the registry still has them"},
			noTruncFlag(),
		},
		Action: noArguments(a.prune),
	}
}

func notNegative(d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("%s is negative", d)
	}
	return nil
}

func (a *app) prune(ctx context.Context, cmd *cli.Command) error {
	dry := !cmd.Bool("yes")
	response, err := show(ctx, a, cmd, api.ControlClient.Prune, &api.PruneRequest{
		DryRun: dry, Handler: cmd.String("handler"), Pinned: cmd.Bool("pinned"), MinAgeSeconds: int64(cmd.Duration("older-than").Seconds()),
	}, func(s style, r *api.PruneResponse) error { return a.printPruned(s, r, dry) })
	if err == nil && dry && len(response.GetRemoved()) > 0 {
		return exitError(exitFailed)
	}
	return err
}

func (a *app) printPruned(s style, r *api.PruneResponse, dry bool) error {
	if len(r.GetRemoved()) == 0 {
		_, err := fmt.Fprintln(a.Out, "Nothing to prune.")
		return err
	}
	verb, then := "Removed", ""
	if dry {
		verb, then = "Would remove", "Nothing was changed. To prune, add --yes.\n"
	}
	if err := a.printRemovedKeys(s, verb, r.GetRemoved()); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.Out, "%s %s, %s.\n%s", verb, count(r.GetImages(), "image"), bytesText(r.GetBytes()), then)
	return err
}
