package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
)

func (e *env) rm() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rm (NAME | KIND/NAME)...",
		Aliases: []string{"unpin"},
		Short:   "Delete ImagePins: the next container that a node creates resolves the tag again",
		Long: templates.LongDesc(`
			Delete ImagePins. To remove images of a node, use "imagepin rm" there.

			For a workload, it deletes those of the current revision. After at most "recheck" (a setting of nodes, 1 minute by
			default), the next container that a node creates, also in a running pod, resolves the tag with the credentials of
			the pod, and creates the ImagePin again. With another pull policy than Always, a node that has an image for the
			tag does not pull, and creates the ImagePin with its digest. Running containers keep their digest.`),
		Example: templates.Examples(`
			# Delete an ImagePin
			kubectl imagepin rm web-7d4b9c.4f2a91c07b

			# Delete the ImagePins of the current revision of a Deployment
			kubectl imagepin rm deployment/web`),
		Args:              someArgs(1, -1, "NAME or KIND/NAME"),
		ValidArgsFunction: e.completePins,
	}
	e.newChange(cmd, func(ctx context.Context, c *change, args []string) error {
		return c.eachTarget(ctx, args, func(pins *kube.Pins, t target) error { return c.delete(ctx, pins, t) })
	})
	return cmd
}

// delete deletes the ImagePins of a target, and prints them.
func (c *change) delete(ctx context.Context, pins *kube.Pins, t target) error {
	if len(t.pins) == 0 {
		c.none(t)
	}
	for i := range t.pins {
		pin := &t.pins[i]
		if send, dryRun := c.onServer(); send {
			if err := pins.Delete(ctx, pin, dryRun); err != nil {
				return err
			}
		}
		if err := c.donePin(pin, fmt.Sprintf("deleted from %s namespace", pin.Namespace)); err != nil {
			return err
		}
	}
	return nil
}
