// Package command has the commands of the plugin, one in each file.
package command

import (
	"flag"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/util/templates"
)

// Exit codes beside 0, and 1 for an error.
const (
	// exitDrift: there is drift.
	exitDrift = 10
	// exitIncomplete: an image is not pinned to the digest of the lock.
	exitIncomplete = 10
	// exitUnprotected: a digest is gone, or can vanish.
	exitUnprotected = 10
)

// env is what all commands share.
type env struct {
	genericiooptions.IOStreams
	flags *genericclioptions.ConfigFlags
}

// New returns the command kubectl-imagepin, which kubectl runs as "kubectl imagepin".
func New(streams genericiooptions.IOStreams) *cobra.Command {
	e := &env{IOStreams: streams, flags: genericclioptions.NewConfigFlags(true).WithDiscoveryBurst(300).WithDiscoveryQPS(50).WithWarningPrinter(streams)}
	rest.SetDefaultWarningHandler(rest.NewWarningWriter(streams.ErrOut, rest.WarningWriterOptions{Deduplicate: true}))
	root := &cobra.Command{
		Use:   "kubectl-imagepin",
		Short: "Show and change which digests the pods of a revision run",
		Long: templates.LongDesc(`
			Show and change which digests the pods of a revision run.

			An ImagePin pins a tag to a digest for one revision of a workload, on all nodes. Nodes with imagepin create
			them. "drift" and "protect" also work in a cluster without imagepin.`),
		Annotations:       map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl imagepin"},
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              noArgs,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	e.flags.AddFlags(root.PersistentFlags())
	addVerbosity(root)
	groups := templates.CommandGroups{
		{Message: "Commands That Show What Runs:", Commands: []*cobra.Command{e.drift(), e.get(), e.explain()}},
		{Message: "Commands That Change ImagePins:", Commands: []*cobra.Command{e.refresh(), e.set(), e.seed(), e.rm()}},
		{Message: "Commands for Registries:", Commands: []*cobra.Command{e.protect()}},
	}
	groups.Add(root)
	root.AddCommand(e.install(), e.version(), options(streams.Out))
	templates.ActsAsRootCommand(root, []string{"options"}, groups...)
	e.completeFlags(root)
	return root
}

// addVerbosity adds the flag -v of kubectl, which logs requests to the API server.
func addVerbosity(root *cobra.Command) {
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	root.PersistentFlags().AddGoFlag(flags.Lookup("v"))
}

// options returns the command that prints the flags of all commands, to which the help of each command refers.
func options(out io.Writer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "options",
		Short: "Print the list of flags inherited by all commands",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Usage() },
	}
	templates.UseOptionsTemplates(cmd)
	cmd.SetOut(out)
	cmd.SetErr(out)
	return cmd
}

// noArgs is an error for arguments of a command that has none.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		return cmdutil.UsageErrorf(cmd, "unknown command %q", args[0])
	}
	return cmdutil.UsageErrorf(cmd, "unexpected argument %q", args[0])
}

// someArgs returns an error for fewer or more arguments. A negative maximum is no maximum.
func someArgs(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return cmdutil.UsageErrorf(cmd, "%s is required", what)
		}
		return nil
	}
}
