package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/util/templates"
	utilexec "k8s.io/utils/exec"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/drift"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/workload"
)

// driftOptions are the flags of the command drift.
type driftOptions struct {
	*env
	out                *output
	all, allNamespaces bool
	labels, fields     string
	chunk              int64
}

func (e *env) drift() *cobra.Command {
	o := &driftOptions{env: e, chunk: cmdutil.DefaultChunkSize}
	cmd := &cobra.Command{
		Use:   "drift",
		Short: "Show revisions whose pods run different digests of one image",
		Long: templates.LongDesc(`
			Show revisions whose pods run different digests of one image.

			Compares the imageIDs that the status of pods reports. Needs permission to list pods, and nothing else: it also
			works in a cluster without imagepin. It ignores pods without a controller, static pods, pods that have
			finished, and containers that report no imageID yet.

			The exit code is 0 if there is no drift, 10 if there is, and 1 for an error.`),
		Example: templates.Examples(`
			# Show drift in the current namespace
			kubectl imagepin drift

			# Show drift in all namespaces, with all pods and complete digests
			kubectl imagepin drift -A -o wide

			# Show what the pods of an application run, also without drift
			kubectl imagepin drift -l app=web --all

			# Show the names of the owners only
			kubectl imagepin drift -o name`),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.out = newOutput(cmd, dataFlags(), "wide", "name")
	o.out.addNoHeaders(cmd)
	cmd.Flags().BoolVar(&o.all, "all", false, "Show all revisions, also those without drift.")
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "If present, list the requested object(s) across all namespaces. Namespace in current context is ignored even if specified with --namespace.")
	cmd.Flags().StringVar(&o.fields, "field-selector", "", "Selector (field query) of the pods to compare, for example --field-selector spec.nodeName=n1.")
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.labels)
	cmdutil.AddChunkSizeFlag(cmd, &o.chunk)
	return cmd
}

func (o *driftOptions) run(ctx context.Context) error {
	if err := o.out.check(); err != nil {
		return err
	}
	namespace, err := o.namespace()
	if err != nil {
		return err
	}
	if o.allNamespaces {
		namespace = metav1.NamespaceAll
	}
	client, err := o.clientset()
	if err != nil {
		return err
	}
	var pods drift.Collector
	opts := metav1.ListOptions{LabelSelector: o.labels, FieldSelector: o.fields}
	if err := kube.EachPod(ctx, client.CoreV1(), namespace, opts, o.chunk, pods.Add); err != nil {
		return err
	}
	report := pods.Report()
	drifted := report.Drifted()
	if err := o.print(report, drifted); err != nil {
		return err
	}
	if len(drifted) > 0 {
		// The error has no text, because the output already says it.
		return utilexec.CodeExitError{Err: errors.New(""), Code: exitDrift}
	}
	return nil
}

func (o *driftOptions) print(report *drift.Report, drifted []drift.Owner) error {
	owners := drifted
	if o.all {
		owners = report.Owners
	}
	switch {
	case !o.out.isOwn():
		data := drift.Report{TypeMeta: metav1.TypeMeta{APIVersion: outputVersion, Kind: "DriftReport"}, Pods: report.Pods, Owners: owners}
		return o.out.printData(o.Out, data)
	case o.out.format == "name":
		for _, name := range resourceNames(owners) {
			if _, err := fmt.Fprintln(o.Out, name); err != nil {
				return err
			}
		}
		return nil
	}
	if len(owners) > 0 {
		if err := o.table(owners).print(o.Out, o.out); err != nil {
			return err
		}
	}
	o.warn(report)
	if len(drifted) == 0 {
		fmt.Fprintf(o.ErrOut, "No drift found in %s of %s.\n", count(report.Pods, "pod"), count(len(report.Owners), "owner"))
	}
	return nil
}

// warn names the owners whose digests cannot be compared.
func (o *driftOptions) warn(report *drift.Report) {
	for _, owner := range report.Owners {
		for _, c := range owner.Containers {
			if !c.Comparable {
				fmt.Fprintf(o.ErrOut, "Warning: %s in namespace %s: cannot compare all pods of container %s: some nodes report the digest of the image's configuration\n",
					ownerName(owner.Owner), owner.Namespace, c.Name)
			}
		}
	}
}

func (o *driftOptions) table(owners []drift.Owner) *table {
	columns := []string{"Owner", "Revision", "Container", "Image", "Digest", "Pods", "Nodes"}
	if o.out.wide() {
		columns = append(columns, "Pod Names")
	}
	t := newTable(o.allNamespaces, columns...)
	for _, owner := range owners {
		for _, c := range owner.Containers {
			if !o.all && !c.Drift {
				continue
			}
			for _, b := range c.Builds {
				t.add(owner.Namespace, o.row(owner, c, b)...)
			}
		}
	}
	return t
}

func (o *driftOptions) row(owner drift.Owner, c drift.Container, b workload.Build) []any {
	var pods, nodes []string
	for _, p := range b.Pods {
		pods, nodes = append(pods, p.Name), append(nodes, p.Node)
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	d, shown := short(b.Digest), 3
	if o.out.wide() {
		d, shown = b.Digest, len(nodes)
	}
	row := []any{ownerName(owner.Owner), owner.Revision, c.Name, c.Image, d, fmt.Sprint(len(b.Pods)), list(nodes, shown)}
	if o.out.wide() {
		row = append(row, list(pods, len(pods)))
	}
	return row
}

// list returns the first of some names, and how many more there are.
func list(names []string, shown int) string {
	if len(names) <= shown {
		return strings.Join(names, ",")
	}
	return fmt.Sprintf("%s + %d more...", strings.Join(names[:shown], ","), len(names)-shown)
}

// resourceNames returns how kubectl names owners with -o name, each once: the list can have several revisions of one.
func resourceNames(owners []drift.Owner) []string {
	type key struct{ namespace, name string }
	var names []string
	seen := make(map[key]bool)
	for _, o := range owners {
		k := key{o.Namespace, resourceName(o)}
		if !seen[k] {
			names, seen[k] = append(names, k.name), true
		}
	}
	return names
}

// resourceName returns how kubectl names an owner with -o name, for example replicaset.apps/web-7d4b9c.
func resourceName(o drift.Owner) string {
	name := strings.ToLower(o.Kind)
	if gv, err := schema.ParseGroupVersion(o.APIVersion); err == nil && gv.Group != "" {
		name += "." + gv.Group
	}
	return name + "/" + o.Name
}
