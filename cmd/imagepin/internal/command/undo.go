package command

import (
	"context"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const pinUndoDescription = `Moves a pin back to the digest that it had before its last change, as "imagepin
pin set" does: the pin then does not expire. It keeps whether it retains its
content. A second undo returns to the current digest, as with kubectl rollout
undo. "imagepin inspect" shows the history of a pin. Running containers are not
affected.

Examples:
  imagepin pin undo docker.io/library/nginx:1.29
  imagepin pin undo shop:v7 --scope workload/shop/pod-template-hash=7d4b9c` + credentialHelp

func (a *app) pinUndoCommand() *cli.Command {
	return &cli.Command{
		Name:        "undo",
		Usage:       "Move a pin back to its previous digest",
		ArgsUsage:   "REF",
		Description: pinUndoDescription,
		Flags:       append([]cli.Flag{scopeFlag("node")}, credentialFlags()...),
		Action:      a.pinUndo,
	}
}

func (a *app) pinUndo(ctx context.Context, cmd *cli.Command) error {
	args, err := arguments(cmd, "REF")
	if err != nil {
		return err
	}
	credential, err := a.credential(ctx, cmd)
	if err != nil {
		return err
	}
	err = a.call(ctx, cmd, func(ctx context.Context, c api.ControlClient) error {
		response, err := c.UndoPin(ctx, &api.UndoPinRequest{Scope: cmd.String("scope"), Ref: args[0], Credential: credential})
		if err != nil {
			return err
		}
		return a.print(cmd, response, func() error { return a.printPinSet(response) })
	})
	return redactPassword(err, credential)
}
