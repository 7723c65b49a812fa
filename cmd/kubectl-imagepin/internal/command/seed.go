package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/util/templates"
	utilexec "k8s.io/utils/exec"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/seed"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// seedOptions are the flags of the command seed.
type seedOptions struct {
	*env
	out           *output
	dryRun        cmdutil.DryRunStrategy
	files         resource.FilenameOptions
	labels        string
	all           bool
	allNamespaces bool
	force         bool
	allowMissing  bool
	wait          bool
	timeout       time.Duration
}

func (e *env) seed() *cobra.Command {
	o := &seedOptions{env: e}
	cmd := &cobra.Command{
		Use:   "seed LOCK (KIND/NAME... | -f FILENAME | -l SELECTOR | --all)",
		Short: "Create ImagePins from a lock before pods start",
		Long: templates.LongDesc(`
			Create ImagePins from a lock (ImagesLock) before pods start, so that several clusters run the same digests.

			For the current revision of each workload, it creates the ImagePin of each tag that the lock names. A revision
			exists when its controller has observed the workload: --wait waits for that. Apply the manifests first, without
			pods: with replicas 0, for a Job with suspend, for an update of a StatefulSet or DaemonSet with the update
			strategy OnDelete. A paused Deployment does not get a revision. For other rollouts, nodes can claim first.

			It shows an ImagePin with another digest as a conflict; with --force, it moves it. After at most "recheck" (a
			setting of nodes, 1 minute by default), each container that a node creates runs the digest of the lock, also in a
			running pod. Running containers keep theirs.

			It does not check that the repository of an image has the digest. References with a digest need no ImagePin.

			The exit code is 0 if each tag is pinned to the digest of the lock, 10 if there is a conflict, an image that the
			lock does not name, or a workload without revisions (a CronJob, or a pod without a controller), and 1 for an
			error. With --allow-missing, only conflicts and errors count.`),
		Example: templates.Examples(`
			# Create the ImagePins of new workloads before their pods start (the manifests have replicas 0)
			kubectl apply -f manifests/
			kubectl imagepin seed images.lock -f manifests/ --wait

			# Create those of a Deployment
			kubectl imagepin seed images.lock deployment/web

			# Show what would change for all workloads of a namespace
			kubectl imagepin seed images.lock --all --namespace shop --dry-run=server

			# Move ImagePins of nodes that were first to the digests of the lock
			kubectl imagepin seed images.lock -l app=web --force`),
		Args:              someArgs(1, -1, "LOCK"),
		ValidArgsFunction: e.completeSeed,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd, args); err != nil {
				return err
			}
			return o.run(cmd.Context(), args[0], args[1:])
		},
	}
	o.out = newOutput(cmd, dataFlags(), "wide", "name")
	o.out.addNoHeaders(cmd)
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "that name the workloads; other objects in them are ignored.")
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.labels)
	cmd.Flags().BoolVar(&o.all, "all", false, "Select all workloads of the namespace.")
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "With --all or --selector, select workloads of all namespaces. Namespace in current context is ignored even if specified with --namespace.")
	cmd.Flags().BoolVar(&o.force, "force", false, "Move ImagePins that have another digest.")
	cmd.Flags().BoolVar(&o.allowMissing, "allow-missing", false, "Do not fail (exit code 10) for images that the lock does not name and for workloads without revisions.")
	cmd.Flags().BoolVar(&o.wait, "wait", false, "Wait until the controllers have observed the workloads.")
	cmd.Flags().DurationVar(&o.timeout, "timeout", time.Minute, "With --wait, the maximum time to wait.")
	cmdutil.AddDryRunFlag(cmd)
	return cmd
}

// complete reads the flags and checks them.
func (o *seedOptions) complete(cmd *cobra.Command, args []string) error {
	var err error
	if o.dryRun, err = cmdutil.GetDryRunStrategy(cmd); err != nil {
		return err
	}
	files := len(o.files.Filenames) > 0 || o.files.Kustomize != ""
	ways := 0
	for _, given := range []bool{len(args) > 1, files, o.labels != "", o.all} {
		if given {
			ways++
		}
	}
	switch {
	case ways != 1:
		return cmdutil.UsageErrorf(cmd, "one of KIND/NAME, --filename, --kustomize, --selector and --all is required")
	case o.allNamespaces && o.labels == "" && !o.all:
		return cmdutil.UsageErrorf(cmd, "--all-namespaces needs --all or --selector")
	case files:
		if err := o.files.RequireFilenameOrKustomize(); err != nil {
			return err
		}
	}
	return o.out.check()
}

func (o *seedOptions) run(ctx context.Context, file string, args []string) error {
	set, err := o.read(file)
	if err != nil {
		return err
	}
	o.flags.WrapConfigFn = unlimited
	objects, err := o.objects(args)
	if len(objects) == 0 && err == nil {
		fmt.Fprintln(o.ErrOut, "No workloads found.")
	}
	r, runErr := o.newRun(set)
	if runErr != nil {
		return runErr
	}
	err = r.seed(ctx, objects, err)
	if len(r.report.Items) > 0 || err == nil {
		if err := o.print(&r.report); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	incomplete := []seed.Status{seed.Conflict}
	if !o.allowMissing {
		incomplete = append(incomplete, seed.NotInLock, seed.NoRevision)
	}
	if r.report.Count(incomplete...) > 0 {
		// The error has no text, because the output already says it.
		return utilexec.CodeExitError{Err: errors.New(""), Code: exitIncomplete}
	}
	return nil
}

// read reads a lock from a file, or from the standard input if file is "-".
func (o *seedOptions) read(file string) (seed.Set, error) {
	in := o.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, lock.MaxSize+1))
	if err != nil {
		return nil, err
	}
	l, err := lock.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	set, err := seed.SetOf(l)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return set, nil
}
