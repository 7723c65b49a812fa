package command

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
)

// restartedAt is the annotation of a pod template that "kubectl rollout restart" sets.
const restartedAt = "kubectl.kubernetes.io/restartedAt"

// canRestart returns an error for an object that "kubectl rollout restart" does not restart.
func canRestart(o object) error {
	if o.mapping.Resource.Group == appsv1.GroupName {
		switch o.mapping.Resource.Resource {
		case "deployments":
			if paused, _, _ := unstructured.NestedBool(o.Object, "spec", "paused"); paused {
				return fmt.Errorf("deployments.apps %q can't restart paused deployment (run rollout resume first)", o.GetName())
			}
			return nil
		case "statefulsets", "daemonsets":
			return nil
		}
	}
	return fmt.Errorf("%s %q cannot be restarted: only deployments, statefulsets and daemonsets can", o.mapping.Resource.GroupResource(), o.GetName())
}

// restartRollout does what "kubectl rollout restart" does. metadata is what it changes in the metadata of the object.
func (c *change) restartRollout(ctx context.Context, o object, metadata map[string]any) error {
	restarted := o.Unstructured
	if send, dryRun := c.onServer(); send {
		config, err := c.flags.ToRESTConfig()
		if err != nil {
			return err
		}
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return err
		}
		change := map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{
			"annotations": map[string]any{restartedAt: time.Now().Format(time.RFC3339)},
		}}}}
		if len(metadata) > 0 {
			change["metadata"] = metadata
		}
		patch, err := json.Marshal(change)
		if err != nil {
			return err
		}
		opts := metav1.PatchOptions{FieldManager: kube.FieldManager}
		if dryRun {
			opts.DryRun = []string{metav1.DryRunAll}
		}
		restarted, err = client.Resource(o.mapping.Resource).Namespace(o.GetNamespace()).Patch(ctx, o.GetName(), types.MergePatchType, patch, opts)
		if err != nil {
			return err
		}
	}
	return c.done(restarted, "restarted")
}
