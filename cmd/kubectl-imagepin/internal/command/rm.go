package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/util/templates"
)

// rmOptions are the flags of the command rm.
type rmOptions struct{ *change }

func (e *env) rm() *cobra.Command {
	var o *rmOptions
	cmd := &cobra.Command{
		Use:   "rm (NAME | KIND/NAME)...",
		Short: "Delete ImagePins: the next pod that starts resolves the tag again",
		Long: templates.LongDesc(`
			Delete ImagePins.

			For a workload, it deletes those of the current revision. The node that starts the next pod resolves the tag with
			the credentials of the pod, and creates the ImagePin again. With another pull policy than Always, a node that has
			an image for the tag does not pull, and creates the ImagePin with its digest. Running containers keep their digest.`),
		Example: templates.Examples(`
			# Delete an ImagePin
			kubectl imagepin rm web-7d4b9c.4f2a91c07b

			# Delete the ImagePins of the current revision of a Deployment
			kubectl imagepin rm deployment/web`),
		Args:              someArgs(1, -1, "NAME or KIND/NAME"),
		ValidArgsFunction: e.completePins,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.run(cmd.Context(), args)
		},
	}
	o = &rmOptions{e.newChange(cmd)}
	return cmd
}

func (o *rmOptions) run(ctx context.Context, args []string) error {
	namespace, err := o.namespace()
	if err != nil {
		return err
	}
	pins, err := o.pins()
	if err != nil {
		return err
	}
	for _, arg := range args {
		t, err := o.target(ctx, pins, namespace, arg)
		if err != nil {
			return err
		}
		if len(t.pins) == 0 {
			o.none(t)
		}
		for i := range t.pins {
			if send, dryRun := o.onServer(); send {
				if err := pins.Delete(ctx, &t.pins[i], dryRun); err != nil {
					return err
				}
			}
			if err := o.donePin(&t.pins[i], fmt.Sprintf("deleted from %s namespace", namespace)); err != nil {
				return err
			}
		}
	}
	return nil
}
