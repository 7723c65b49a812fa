package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const removeDescription = `Removes images with all of their references, and what only they need on the disk,
as crictl rmi does. An image that a container uses is not removed. Pins stay: the
next pull of a pinned reference fetches the same digest. To remove a pin of the
node, use "imagepin pin rm", and for one of the cluster "kubectl imagepin rm".

If an image cannot be removed, the others are, and the exit code is 1.

Examples:
  imagepin rm docker.io/library/nginx:1.29 docker.io/library/redis:8
  imagepin rm docker.io/library/nginx:1.29 --handler kata
  imagepin rm 3f8a4339aadd`

func (a *app) removeCommand() *cli.Command {
	return &cli.Command{
		Name:        "rm",
		Aliases:     []string{"rmi"},
		Usage:       "Remove images",
		ArgsUsage:   "REF...",
		Description: removeDescription,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "handler", Usage: "remove them only for the platform and snapshotter of runtime `HANDLER`"},
			noTruncFlag(),
		},
		Action: a.remove,
	}
}

func (a *app) remove(ctx context.Context, cmd *cli.Command) error {
	refs, err := references(cmd)
	if err != nil {
		return err
	}
	removed := &api.RemoveImageResponse{}
	failed, err := a.callEach(ctx, cmd, refs, func(ctx context.Context, c api.ControlClient, ref string) error {
		r, err := c.RemoveImage(ctx, &api.RemoveImageRequest{Ref: ref, Handler: cmd.String("handler")})
		proto.Merge(removed, r)
		return err
	})
	if len(removed.GetRemoved()) > 0 || err == nil && len(failed) == 0 {
		failed = append(failed, a.print(cmd, removed, func() error { return a.printRemoved(a.style(cmd), removed) }))
	}
	return errors.Join(append(failed, err)...)
}

// references returns the arguments of a command that takes one reference or more.
func references(cmd *cli.Command) ([]string, error) {
	if cmd.NArg() > 0 {
		return cmd.Args().Slice(), nil
	}
	return arguments(cmd, "REF...")
}

// callEach calls do for each reference. If it fails for one of several, it continues with the next, and failed has the
// errors. err is that of a call that says nothing about its reference, and ends this; or that of the only reference.
func (a *app) callEach(ctx context.Context, cmd *cli.Command, refs []string, do func(ctx context.Context, c api.ControlClient, ref string) error) (failed []error, err error) {
	err = a.call(ctx, cmd, func(ctx context.Context, c api.ControlClient) error {
		for _, ref := range refs {
			switch err := do(ctx, c, ref); {
			case err == nil:
			case ctx.Err() != nil, len(refs) == 1, unreachable(err):
				return err
			default:
				failed = append(failed, errors.New(status.Convert(err).Message()))
			}
		}
		return nil
	})
	return failed, err
}

// unreachable reports whether an error is about the control service, so that calls for other references fail too.
func unreachable(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.Unimplemented
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
