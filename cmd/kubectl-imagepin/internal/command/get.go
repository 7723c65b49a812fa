package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/workload"
)

// getOptions are the flags of the command get.
type getOptions struct {
	*env
	out           *output
	allNamespaces bool
	labels        string
	chunk         int64
}

func (e *env) get() *cobra.Command {
	o := &getOptions{env: e, chunk: cmdutil.DefaultChunkSize}
	cmd := &cobra.Command{
		Use:   "get [NAME | KIND/NAME]...",
		Short: "List ImagePins",
		Long: templates.LongDesc(`
			List ImagePins: all of a namespace, those that you name, or those of a workload or a pod.

			For a workload, it lists the ImagePins of all its revisions, so also those to which "kubectl rollout undo"
			can return.`),
		Example: templates.Examples(`
			# List the ImagePins of the current namespace
			kubectl imagepin get

			# List the ImagePins of all revisions of a Deployment
			kubectl imagepin get deployment/web

			# Print an ImagePin
			kubectl imagepin get web-7d4b9c.4f2a91c07b -o yaml`),
		ValidArgsFunction: e.completePins,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	o.out = newOutput(cmd, genericclioptions.NewPrintFlags(""), "wide")
	o.out.addNoHeaders(cmd)
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "If present, list the requested object(s) across all namespaces. Namespace in current context is ignored even if specified with --namespace.")
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.labels)
	cmdutil.AddChunkSizeFlag(cmd, &o.chunk)
	return cmd
}

func (o *getOptions) run(ctx context.Context, args []string) error {
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
	switch {
	case o.allNamespaces && len(args) > 0:
		return errors.New("a resource cannot be retrieved by name across all namespaces")
	case o.labels != "" && len(args) > 0:
		return errors.New("name cannot be provided when a selector is specified")
	}
	pins, err := o.pins()
	if err != nil {
		return err
	}
	list := &lister{o, pins, namespace}
	if len(args) == 0 {
		all, err := list.all(ctx, metav1.ListOptions{LabelSelector: o.labels})
		if err != nil {
			return err
		}
		return o.print(all, namespace, false)
	}
	return list.printNamed(ctx, args)
}

// lister lists ImagePins.
type lister struct {
	*getOptions
	pins      *kube.Pins
	namespace string
}

func (l *lister) all(ctx context.Context, opts metav1.ListOptions) ([]v1alpha1.ImagePin, error) {
	opts.Limit = l.chunk
	return l.pins.List(ctx, l.namespace, opts)
}

// printNamed prints the ImagePins that arguments name. It returns the errors of arguments after it has printed those of the
// others.
func (l *lister) printNamed(ctx context.Context, args []string) error {
	var found []v1alpha1.ImagePin
	single := len(args) == 1
	err := each(ctx, args, func(arg string) error {
		pins, isPin, err := l.named(ctx, arg)
		if err != nil {
			return err
		}
		found, single = append(found, pins...), single && isPin
		return nil
	})
	if len(found) > 0 || err == nil {
		if err := l.print(found, l.namespace, single); err != nil {
			return err
		}
	}
	return err
}

// named returns the ImagePins that an argument names, and whether it names one.
func (l *lister) named(ctx context.Context, arg string) ([]v1alpha1.ImagePin, bool, error) {
	if name, ok := pinName(arg); ok {
		pin, err := l.pins.Get(ctx, l.namespace, name)
		if apierrors.IsNotFound(err) && arg == name {
			return nil, true, fmt.Errorf("%w; for a pod or a workload, use KIND/NAME", err)
		}
		return []v1alpha1.ImagePin{*pin}, true, err
	}
	obj, err := l.object(l.namespace, "", arg)
	if err != nil {
		return nil, false, err
	}
	match, err := l.matcher(ctx, obj)
	if err != nil {
		return nil, false, err
	}
	all, err := l.all(ctx, metav1.ListOptions{})
	return slices.DeleteFunc(all, func(pin v1alpha1.ImagePin) bool { return !match(pin.Spec.Owner) }), false, err
}

// matcher returns a function that reports whether an owner is a revision of an object, or of what the object controls.
func (l *lister) matcher(ctx context.Context, obj object) (func(v1alpha1.Owner) bool, error) {
	if obj.GroupVersionKind().GroupKind() == (schema.GroupKind{Kind: "Pod"}) {
		owner, _ := workload.OwnerOf(obj)
		return func(o v1alpha1.Owner) bool { return o.UID == owner.UID && o.Revision == owner.Revision }, nil
	}
	uids := []types.UID{obj.GetUID()}
	client, err := l.clientset()
	if err != nil {
		return nil, err
	}
	if obj.GroupVersionKind().GroupKind() == (schema.GroupKind{Group: batchv1.GroupName, Kind: "CronJob"}) {
		jobs, err := client.BatchV1().Jobs(l.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, j := range jobs.Items {
			if metav1.IsControlledBy(&j, obj) {
				uids = append(uids, j.UID)
			}
		}
	} else {
		sets, err := kube.NewFinder(client).ReplicaSets(ctx, obj, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, rs := range sets {
			uids = append(uids, rs.UID)
		}
	}
	return func(o v1alpha1.Owner) bool { return slices.Contains(uids, o.UID) }, nil
}

// print prints ImagePins. single is whether to print an object rather than a list.
func (o *getOptions) print(pins []v1alpha1.ImagePin, namespace string, single bool) error {
	if !o.out.isOwn() {
		return o.printObjects(pins, single)
	}
	if len(pins) == 0 {
		where := "in " + namespace + " namespace."
		if o.allNamespaces {
			where = "in any namespace."
		}
		fmt.Fprintln(o.ErrOut, "No ImagePins found", where)
		return nil
	}
	columns := []string{"Name", "Owner", "Image", "Digest", "Node", "Age"}
	if o.out.wide() {
		columns = append(columns, "Pod", "Revision")
	}
	t := newTable(o.allNamespaces, columns...)
	for _, pin := range pins {
		t.add(pin.Namespace, o.row(&pin)...)
	}
	return t.print(o.Out, o.out)
}

func (o *getOptions) row(pin *v1alpha1.ImagePin) []any {
	by := pin.Spec.By
	if by == nil {
		by = &v1alpha1.Claimer{}
	}
	d := short(pin.Spec.Digest)
	if o.out.wide() {
		d = pin.Spec.Digest
	}
	row := []any{pin.Name, ownerName(pin.Spec.Owner), pin.Spec.Image, d, by.Node, age(pin.CreationTimestamp)}
	if o.out.wide() {
		row = append(row, by.Pod, pin.Spec.Owner.Revision)
	}
	return row
}

func (o *getOptions) printObjects(pins []v1alpha1.ImagePin, single bool) error {
	if single {
		return o.out.print(o.Out, typed(&pins[0]))
	}
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("v1")
	list.SetKind("List")
	for i := range pins {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed(&pins[i]))
		if err != nil {
			return err
		}
		list.Items = append(list.Items, unstructured.Unstructured{Object: content})
	}
	return o.out.print(o.Out, list)
}

// age returns how long ago a time was, as kubectl prints it.
func age(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}
