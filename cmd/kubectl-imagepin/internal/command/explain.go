package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/printers"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/explain"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/registry"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/workload"
)

// explainOptions are the flags of the command explain.
type explainOptions struct {
	*env
	out      *output
	resolve  bool
	resolver registry.Resolver
}

// lookupTimeout is how long explain waits for registries.
const lookupTimeout = 5 * time.Second

func (e *env) explain() *cobra.Command {
	o := &explainOptions{env: e}
	cmd := &cobra.Command{
		Use:   "explain (POD | KIND/NAME)",
		Short: "Show which ImagePins apply to a pod or a workload, and what runs",
		Long: templates.LongDesc(`
			Show which ImagePins apply to a pod or a workload, and what runs.

			For each container, it shows the digest, which node created the ImagePin for which pod, whether somebody has
			moved it since, and which digests the pods run. For a workload, it shows the current revision: the ReplicaSet of
			a Deployment, the update revision of a StatefulSet, the latest revision of a DaemonSet.

			It also looks up the current digest of the tag of each ImagePin, from where you run it, with the credentials of
			your Docker configuration, and waits at most 5 seconds for registries. A tag that cannot be resolved is shown as
			unknown, with the reason.`),
		Example: templates.Examples(`
			# Explain the images of a pod
			kubectl imagepin explain web-7d4b9c-x8x2b

			# Explain the images of the current revision of a Deployment
			kubectl imagepin explain deployment/web

			# Send no requests to registries
			kubectl imagepin explain deployment/web --resolve=false`),
		Args:              someArgs(1, 1, "a pod, or KIND/NAME,"),
		ValidArgsFunction: e.completeFirst("pods"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.out = newOutput(cmd, dataFlags())
	cmd.Flags().BoolVar(&o.resolve, "resolve", true, "Look up the current digests of tags at their registries.")
	addInsecureRegistry(cmd, &o.resolver)
	return cmd
}

func (o *explainOptions) run(ctx context.Context, arg string) error {
	if err := o.out.check(); err != nil {
		return err
	}
	namespace, err := o.namespace()
	if err != nil {
		return err
	}
	obj, err := o.object(namespace, "pods", arg)
	if err != nil {
		return err
	}
	revision, err := o.of(ctx, obj)
	if err != nil {
		return err
	}
	if err := o.addPins(ctx, revision); err != nil {
		return err
	}
	e := explain.Of(*revision)
	if o.resolve {
		e.AddTags(o.resolver.Lookup(ctx, e.PinnedImages(), lookupTimeout))
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if !o.out.isOwn() {
		e.TypeMeta = metav1.TypeMeta{APIVersion: outputVersion, Kind: "Explanation"}
		return o.out.printData(o.Out, e)
	}
	return o.print(obj, e)
}

// of returns the revision of a pod or a workload, with its pods.
func (o *explainOptions) of(ctx context.Context, obj object) (*explain.Revision, error) {
	if obj.GroupVersionKind().GroupKind() == (schema.GroupKind{Kind: "Pod"}) {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &pod); err != nil {
			return nil, err
		}
		r := &explain.Revision{Namespace: pod.Namespace, Template: &pod.Spec, Annotations: pod.Annotations, Pods: []corev1.Pod{pod}}
		if owner, ok := workload.OwnerOf(&pod); ok {
			r.Owner = &owner
		}
		return r, nil
	}
	client, err := o.clientset()
	if err != nil {
		return nil, err
	}
	current, err := kube.NewFinder(client).Current(ctx, obj.Unstructured)
	if err != nil {
		return nil, err
	}
	r := &explain.Revision{Namespace: current.Namespace, Owner: &current.Owner, Template: current.Template, Annotations: current.Annotations}
	opts := metav1.ListOptions{LabelSelector: current.Selector.String()}
	return r, kube.EachPod(ctx, client.CoreV1(), r.Namespace, opts, cmdutil.DefaultChunkSize, func(pod *corev1.Pod) {
		if owner, ok := workload.OwnerOf(pod); ok && owner.UID == r.Owner.UID && owner.Revision == r.Owner.Revision {
			r.Pods = append(r.Pods, *pod)
		}
	})
}

// addPins adds the ImagePins of the revision. A cluster without ImagePins has none.
func (o *explainOptions) addPins(ctx context.Context, r *explain.Revision) error {
	if r.Owner == nil {
		return nil
	}
	pins, err := o.pins()
	if err != nil {
		return err
	}
	r.Pins, err = pins.Of(ctx, r.Namespace, *r.Owner)
	if errors.Is(err, kube.ErrNotServed) {
		fmt.Fprintf(o.ErrOut, "Warning: %v\n", err)
		return nil
	}
	return err
}

func (o *explainOptions) print(obj object, e *explain.Explanation) error {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s:\t%s\n", obj.GetKind(), obj.GetName())
	fmt.Fprintf(w, "Namespace:\t%s\n", e.Namespace)
	switch {
	case e.Owner == nil:
		fmt.Fprintf(w, "Owner:\t<none>\n")
	case e.Owner.UID != obj.GetUID():
		fmt.Fprintf(w, "Owner:\t%s\n", ownerName(*e.Owner))
	}
	if e.Owner != nil && e.Owner.Revision != "" {
		fmt.Fprintf(w, "Revision:\t%s\n", e.Owner.Revision)
	}
	for _, c := range e.Containers {
		fmt.Fprintf(w, "\n%s %s\n", titles[c.Type], c.Name)
		fmt.Fprintf(w, "  Image:\t%s\n", c.Image)
		printPin(w, c)
		if c.Tag != nil {
			fmt.Fprintf(w, "  Tag now:\t%s\n", tagNow(*c.Tag))
		}
		for i, r := range c.Running {
			label := "Running:"
			if i > 0 {
				label = ""
			}
			fmt.Fprintf(w, "  %s\t%s\n", label, running(r))
		}
		if len(c.Running) == 0 {
			fmt.Fprintf(w, "  Running:\t<none>\n")
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	// The images of pods can have escape sequences.
	return printers.WriteEscaped(o.Out, text.String())
}

var titles = map[workload.ContainerType]string{
	workload.InitContainer: "Init container", workload.RegularContainer: "Container",
	workload.EphemeralContainer: "Ephemeral container", workload.ImageVolume: "Volume",
}

func printPin(w io.Writer, c explain.Container) {
	p := c.Pin
	if p == nil {
		fmt.Fprintf(w, "  ImagePin:\t<none>: %s\n", c.Reason)
		return
	}
	fmt.Fprintf(w, "  ImagePin:\t%s\n", p.Name)
	if p.Image != c.Image {
		fmt.Fprintf(w, "  Pinned:\t%s\n", p.Image)
	}
	fmt.Fprintf(w, "  Digest:\t%s\n", p.Digest)
	by := "by another client"
	if p.By != nil {
		by = fmt.Sprintf("by node %s for pod %s", p.By.Node, p.By.Pod)
	}
	fmt.Fprintf(w, "  Created:\t%s ago %s\n", age(p.Created), by)
	if p.Moved != nil {
		fmt.Fprintf(w, "  Moved:\t%s ago with %s\n", age(p.Moved.Time), p.Moved.Manager)
	}
}

// tagNow says what the current digest of a tag is, and whether it is that of the ImagePin.
func tagNow(t explain.Tag) string {
	switch {
	case t.Differs == nil:
		return "<unknown>: " + t.Error
	case *t.Differs:
		return t.Digest + ": differs from the ImagePin"
	}
	return "same digest"
}

// running says what pods run, where, and whether it is what the ImagePin says.
func running(r explain.Running) string {
	var nodes []string
	for _, p := range r.Pods {
		nodes = append(nodes, p.Node)
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	s := fmt.Sprintf("%s in %s on %s", r.Digest, count(len(r.Pods), "pod"), strings.Join(nodes, ", "))
	switch {
	case r.Of == workload.OfConfig:
		s += ": digest of the image's configuration"
	case r.Differs != nil && *r.Differs:
		s += ": differs from the ImagePin"
	}
	return s
}
