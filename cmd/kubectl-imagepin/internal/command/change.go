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

// newChange adds the flags to a command, which calls run with its arguments after it has read them.
func (e *env) newChange(cmd *cobra.Command, run func(context.Context, *change, []string) error) {
	c := &change{env: e, printFlags: genericclioptions.NewPrintFlags("")}
	c.printFlags.AddFlags(cmd)
	cmdutil.AddDryRunFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if c.dryRun, err = cmdutil.GetDryRunStrategy(cmd); err != nil {
			return err
		}
		if _, err := c.printer(""); err != nil {
			return err
		}
		return run(cmd.Context(), c, args)
	}
}

// eachTarget calls do for what each argument names, as [each].
func (c *change) eachTarget(ctx context.Context, args []string, do func(*kube.Pins, target) error) error {
	namespace, err := c.namespace()
	if err != nil {
		return err
	}
	pins, err := c.pins()
	if err != nil {
		return err
	}
	return each(ctx, args, func(arg string) error {
		t, err := c.target(ctx, pins, namespace, arg)
		if err != nil {
			return err
		}
		return do(pins, t)
	})
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
