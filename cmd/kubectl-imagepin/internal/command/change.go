package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
)

// change are the flags of a command that changes objects.
type change struct {
	*env
	printFlags *genericclioptions.PrintFlags
	dryRun     cmdutil.DryRunStrategy
}

func (e *env) newChange(cmd *cobra.Command) *change {
	c := &change{env: e, printFlags: genericclioptions.NewPrintFlags("")}
	c.printFlags.AddFlags(cmd)
	cmdutil.AddDryRunFlag(cmd)
	return c
}

// complete reads the flags.
func (c *change) complete(cmd *cobra.Command) error {
	var err error
	if c.dryRun, err = cmdutil.GetDryRunStrategy(cmd); err != nil {
		return err
	}
	_, err = c.printer("")
	return err
}

// onServer reports whether to send requests, and whether the server only simulates them.
func (c *change) onServer() (send, dryRun bool) {
	return c.dryRun != cmdutil.DryRunClient, c.dryRun == cmdutil.DryRunServer
}

// done prints what was done with an object, in the format of the flags.
func (c *change) done(obj runtime.Object, operation string) error {
	print, err := c.printer(operation)
	if err != nil {
		return err
	}
	return print(obj)
}

// donePin prints what was done with an ImagePin.
func (c *change) donePin(pin *v1alpha1.ImagePin, operation string) error {
	return c.done(typed(pin), operation)
}

func (c *change) printer(operation string) (func(runtime.Object) error, error) {
	c.printFlags.NamePrintFlags.Operation = operation
	cmdutil.PrintFlagsWithDryRunStrategy(c.printFlags, c.dryRun)
	p, err := c.printFlags.ToPrinter()
	if err != nil {
		return nil, err
	}
	return func(obj runtime.Object) error { return p.PrintObj(obj, c.Out) }, nil
}

// none prints that a revision has no ImagePins.
func (c *change) none(t target) {
	fmt.Fprintf(c.ErrOut, "No ImagePins of %s found in %s namespace.\n", t.revision, t.revision.Namespace)
}

// move moves an ImagePin to a digest, and prints what it did.
func (c *change) move(ctx context.Context, pins *kube.Pins, pin *v1alpha1.ImagePin, digest string) error {
	if pin.Spec.Digest == digest {
		return c.donePin(pin, "unchanged")
	}
	moved := pin.DeepCopy()
	moved.Spec.Digest = digest
	if send, dryRun := c.onServer(); send {
		var err error
		if moved, err = pins.Move(ctx, pin, digest, dryRun); err != nil {
			return err
		}
	}
	return c.donePin(moved, fmt.Sprintf("moved from %s to %s", short(pin.Spec.Digest), short(digest)))
}
