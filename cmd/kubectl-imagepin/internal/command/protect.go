package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/util/templates"
	utilexec "k8s.io/utils/exec"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/protect"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/registry"
)

// maxWarnings is how many invalid references are named.
const maxWarnings = 10

// protectOptions are the flags of the command protect.
type protectOptions struct {
	*env
	out          *output
	dryRun       cmdutil.DryRunStrategy
	check, all   bool
	only, except []string
	grace        time.Duration
	timeout      time.Duration
	insecure     bool
	chunk        int64
}

func (e *env) protect() *cobra.Command {
	o := &protectOptions{env: e, chunk: cmdutil.DefaultChunkSize}
	cmd := &cobra.Command{
		Use:   "protect",
		Short: "Keep the digests that a cluster needs in their registries",
		Long: templates.LongDesc(`
			Keep the digests that a cluster needs in their registries, where a retention rule or a garbage collection deletes
			what has no tag. It also works in a cluster without imagepin.

			Each digest that running pods report, that ImagePins have, and that the pod templates of kept revisions and of
			CronJobs name, gets a tag of its own in its repository: imagepin-CLUSTER-DIGEST, with the first digits of a hash
			of the cluster and of the digest. It reads all namespaces. Run it periodically.

			It deletes a tag when nothing has needed its digest for the grace time, never a digest. Where a registry cannot
			delete a tag, or deletes the manifest with it, the tag is kept. The ConfigMap imagepin-protect in the namespace
			kube-system has the tags, and since when each is not needed.

			It pushes with the credentials of your Docker configuration, and reads no pull secrets.

			The exit code is 0 if all digests are protected, 10 if a digest is gone or its registry refuses the tag, and 1 for
			an error, such as a registry that does not answer. With --check, it is 10 if a digest is gone or has no known tag.`),
		Example: templates.Examples(`
			# Protect the digests in the repositories of a registry
			kubectl imagepin protect --only registry.example.com

			# Look for digests that are gone or that a retention rule can delete
			kubectl imagepin protect --check

			# Print the digests that the cluster needs, without a request to a registry
			kubectl imagepin protect --dry-run=client -o json

			# Show what would change
			kubectl imagepin protect --dry-run=server`),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	o.out = newOutput(cmd, dataFlags(), "wide")
	o.out.addNoHeaders(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&o.check, "check", false, "Change nothing, and look for digests that are gone or that no known tag means.")
	flags.BoolVar(&o.all, "all", false, "Show all digests, also those that are protected.")
	flags.StringSliceVar(&o.only, "only", nil, "Registries or repositories, with those below them, to look at, for example registry.example.com/shop. The default is all.")
	flags.StringSliceVar(&o.except, "except", nil, "Registries or repositories, with those below them, to ignore, for example docker.io.")
	flags.DurationVar(&o.grace, "grace-time", 7*24*time.Hour, "How long a tag stays when nothing needs its digest any more.")
	flags.DurationVar(&o.timeout, "timeout", 10*time.Minute, "The maximum time for requests to registries.")
	flags.BoolVar(&o.insecure, "insecure-registry", false, "Use HTTP for registries that do not serve HTTPS.")
	cmdutil.AddChunkSizeFlag(cmd, &o.chunk)
	cmdutil.AddDryRunFlag(cmd)
	flags.Lookup("dry-run").Usage = `Must be "none", "server", or "client". With client, only read the cluster. With server, also look up digests, and change nothing.`
	return cmd
}

// complete reads the flags and checks them.
func (o *protectOptions) complete(cmd *cobra.Command) error {
	var err error
	if o.dryRun, err = cmdutil.GetDryRunStrategy(cmd); err != nil {
		return err
	}
	switch {
	case o.check && o.dryRun != cmdutil.DryRunNone:
		return cmdutil.UsageErrorf(cmd, "--check changes nothing: it cannot be used with --dry-run")
	case o.grace < 0:
		return cmdutil.UsageErrorf(cmd, "--grace-time must not be negative")
	case o.timeout <= 0:
		return cmdutil.UsageErrorf(cmd, "--timeout must be positive")
	case slices.Contains(append(slices.Clone(o.only), o.except...), ""):
		return cmdutil.UsageErrorf(cmd, "--only and --except need registries or repositories")
	}
	return o.out.check()
}

func (o *protectOptions) run(ctx context.Context) error {
	o.flags.WrapConfigFn = unlimited
	client, err := o.clientset()
	if err != nil {
		return err
	}
	pins, err := o.pins()
	if err != nil {
		return err
	}
	cluster, err := kube.ClusterOf(ctx, client)
	if err != nil {
		return err
	}
	registries := registry.NewClient(o.insecure)
	defer registries.Close()
	run := &protect.Run{
		Cluster:    cluster,
		Needs:      func(context.Context) (*protect.Needs, error) { return kube.ReadNeeds(ctx, client, pins, o.chunk) },
		Repository: func(name string) (protect.Repository, error) { return registries.Repository(name) },
		Store:      kube.NewTags(client),
		Selected:   o.selected, Grace: o.grace, DryRun: o.dryRun == cmdutil.DryRunServer, Now: time.Now,
	}
	report, needs, err := o.look(ctx, run)
	if report == nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := o.print(report); err != nil {
		return err
	}
	for i, invalid := range needs.Invalid {
		if i == maxWarnings {
			fmt.Fprintf(o.ErrOut, "Warning: ignored: %d more\n", len(needs.Invalid)-i)
			break
		}
		fmt.Fprintf(o.ErrOut, "Warning: ignored: %v\n", invalid)
	}
	return o.exit(report, err)
}

// look runs what the flags say.
func (o *protectOptions) look(ctx context.Context, run *protect.Run) (*protect.Report, *protect.Needs, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	switch {
	case o.check:
		return run.Check(ctx)
	case o.dryRun == cmdutil.DryRunClient:
		report, needs, err := run.List(ctx)
		if report != nil {
			report.DryRun = "client"
		}
		return report, needs, err
	}
	report, needs, err := run.Protect(ctx)
	if report != nil && o.dryRun == cmdutil.DryRunServer {
		report.DryRun = "server"
	}
	return report, needs, err
}

// selected reports whether the flags select a repository.
func (o *protectOptions) selected(repository string) bool {
	below := func(name string) bool {
		name = strings.TrimSuffix(name, "/")
		return repository == name || strings.HasPrefix(repository, name+"/")
	}
	return (len(o.only) == 0 || slices.ContainsFunc(o.only, below)) && !slices.ContainsFunc(o.except, below)
}

// exit returns the error of a run: that of the exit code 1 before that of the exit code 10.
func (o *protectOptions) exit(report *protect.Report, err error) error {
	errs := flatten(err)
	if n := report.Count(protect.Failed); n > 0 {
		errs = append(errs, fmt.Errorf("%s not looked up", count(n, "digest")))
	}
	if len(errs) > 0 {
		return utilerrors.NewAggregate(errs)
	}
	unprotected := []protect.Status{protect.Gone, protect.Refused, protect.Conflict}
	if o.check {
		unprotected = []protect.Status{protect.Gone, protect.Untagged}
	}
	if report.Count(unprotected...) > 0 {
		// The error has no text, because the output already says it.
		return utilexec.CodeExitError{Err: errors.New(""), Code: exitUnprotected}
	}
	return nil
}
