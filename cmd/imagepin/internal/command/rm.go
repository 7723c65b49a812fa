package command

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const removeDescription = `Removes an image with all of its references, and what only it needs on the disk,
as crictl rmi does. An image that a container uses is not removed. Pins stay: the
next pull of a pinned reference fetches the same digest.

With --handler, it removes the image only for the platform and the snapshotter of
that runtime handler.

Examples:
  imagepin rm docker.io/library/nginx:1.29
  imagepin rm docker.io/library/nginx:1.29 --handler kata
  imagepin rm 3f8a4339aadd`

func (a *app) removeCommand() *cli.Command {
	return &cli.Command{
		Name:        "rm",
		Aliases:     []string{"rmi"},
		Usage:       "Remove an image",
		ArgsUsage:   "REF",
		Description: removeDescription,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "handler", Usage: "remove it only for runtime `HANDLER`; empty means all"},
			noTruncFlag(),
		},
		Action: a.remove,
	}
}

func (a *app) remove(ctx context.Context, cmd *cli.Command) error {
	args, err := arguments(cmd, "REF")
	if err != nil {
		return err
	}
	_, err = show(ctx, a, cmd, api.ControlClient.RemoveImage, &api.RemoveImageRequest{Ref: args[0], Handler: cmd.String("handler")}, a.printRemoved)
	return err
}

func (a *app) printRemoved(s style, r *api.RemoveImageResponse) error {
	if err := a.printRemovedKeys(s, "Removed", r.GetRemoved()); err != nil {
		return err
	}
	for _, p := range r.GetPins() {
		if _, err := fmt.Fprintf(a.Out, "%s stays pinned to %s (scope %s)\n", p.GetRef(), s.digest(p.GetRoot().GetDigest()), p.GetScope()); err != nil {
			return err
		}
	}
	return nil
}

// printRemovedKeys prints one line for each key.
func (a *app) printRemovedKeys(s style, verb string, keys []*api.Key) error {
	for _, k := range keys {
		if _, err := fmt.Fprintf(a.Out, "%s %s for %s\n", verb, s.ref(k.GetRef()), targetName(k.GetTarget())); err != nil {
			return err
		}
	}
	return nil
}
