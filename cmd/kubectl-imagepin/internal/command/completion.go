package command

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// maxCompletions is how many objects a completion offers.
const maxCompletions = 500

// workloads are the kinds that arguments usually name.
var workloads = []string{"deployment", "statefulset", "daemonset", "replicaset", "job", "pod"}

// completePins completes the name of an ImagePin, or KIND/NAME.
func (e *env) completePins(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return e.completeObjects(cmd, v1alpha1.Resource+"."+v1alpha1.GroupVersion.Group, prefix)
}

// completeFirst completes the name of an object of a default resource, or KIND/NAME, as the first argument.
func (e *env) completeFirst(defaultResource string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return e.completeObjects(cmd, defaultResource, prefix)
	}
}

// completeSeed completes a file as the first argument, then KIND/NAME.
func (e *env) completeSeed(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return e.completeObjects(cmd, "", prefix)
}

// completeObjects completes the name of an object of a default resource, or KIND/NAME.
func (e *env) completeObjects(cmd *cobra.Command, defaultResource, prefix string) ([]string, cobra.ShellCompDirective) {
	if kind, _, ok := strings.Cut(prefix, "/"); ok {
		return withPrefix(prefix, kind+"/", e.names(cmd.Context(), kind)), cobra.ShellCompDirectiveNoFileComp
	}
	var found []string
	if defaultResource != "" {
		found = withPrefix(prefix, "", e.names(cmd.Context(), defaultResource))
	}
	for _, kind := range workloads {
		found = append(found, withPrefix(prefix, "", []string{kind + "/"})...)
	}
	directive := cobra.ShellCompDirectiveNoFileComp
	if len(found) == 1 && strings.HasSuffix(found[0], "/") {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return found, directive
}

// names returns the names of the objects of a resource, or nothing if it cannot list them.
func (e *env) names(ctx context.Context, resource string) []string {
	namespace, err := e.namespace()
	if err != nil {
		return nil
	}
	mapper, err := e.flags.ToRESTMapper()
	if err != nil {
		return nil
	}
	gvk, err := mapper.KindFor(schema.ParseGroupResource(resource).WithVersion(""))
	if err != nil {
		return nil
	}
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil
	}
	config, err := e.flags.ToRESTConfig()
	if err != nil {
		return nil
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		namespace = ""
	}
	list, err := client.Resource(mapping.Resource).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: maxCompletions})
	if err != nil {
		return nil
	}
	var names []string
	for _, item := range list.Items {
		names = append(names, item.Name)
	}
	return names
}

// withPrefix returns the words that start with a prefix, each after before.
func withPrefix(prefix, before string, words []string) []string {
	var found []string
	for _, w := range words {
		if strings.HasPrefix(before+w, prefix) {
			found = append(found, before+w)
		}
	}
	return found
}

// completeFlags completes the values of flags of all commands.
func (e *env) completeFlags(root *cobra.Command) {
	complete := func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return withPrefix(prefix, "", e.names(cmd.Context(), "namespaces")), cobra.ShellCompDirectiveNoFileComp
	}
	if err := root.RegisterFlagCompletionFunc("namespace", complete); err != nil {
		panic(err) // the flag is not defined
	}
}
