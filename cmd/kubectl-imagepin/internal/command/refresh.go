package command

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/registry"
)

// refreshOptions are the flags of the command refresh.
type refreshOptions struct {
	*change
	restart                  bool
	newRevision              string
	annotated, allNamespaces bool
	resolver                 registry.Resolver
}

func (e *env) refresh() *cobra.Command {
	o := &refreshOptions{}
	cmd := &cobra.Command{
		Use:   "refresh (NAME | KIND/NAME)... | --annotated",
		Short: "Move ImagePins to the current digest of their tags",
		Long: templates.LongDesc(`
			Move ImagePins to the current digest of their tags.

			For a workload, it moves the ImagePins of the current revision. After at most "recheck" (a setting of nodes, 1
			minute by default), each container that a node creates runs the new digest, also in a running pod. Running
			containers keep theirs. If a tag cannot be resolved, its workload is not changed, but others are.

			With --restart, it moves nothing. It restarts the rollout of a Deployment, StatefulSet or DaemonSet, as
			"kubectl rollout restart" does, if the digest of a tag in its pod template has changed. The new revision resolves
			its tags again, and "kubectl rollout undo" returns to the digests of the old one. The containers need the pull
			policy Always, or IfNotPresent with --new-revision=resolve, if all nodes that run the workload have the setting
			new_revision = "resolve" for its images. The settings of nodes are not checked.

			With --annotated, it refreshes all Deployments, StatefulSets and DaemonSets whose own annotation
			imagepin.io/follow-tags is "true". With --restart too, it skips those that were restarted for the same digest
			before, or rolled back from it.

			It resolves tags with the credentials of your Docker configuration. If you have no access to the registry,
			use "kubectl imagepin rm": then the node that creates the next container resolves the tag.`),
		Example: templates.Examples(`
			# Move the ImagePins of the current revision of a Deployment
			kubectl imagepin refresh deployment/web

			# Restart a Deployment if one of its tags has moved
			kubectl imagepin refresh deployment/web --restart

			# Also if its containers have the pull policy IfNotPresent, on nodes with new_revision = "resolve"
			kubectl imagepin refresh deployment/web --restart --new-revision=resolve

			# Restart the workloads that follow their tags, in all namespaces
			kubectl imagepin refresh --annotated --restart --all-namespaces

			# Show what would change
			kubectl imagepin refresh deployment/web --dry-run=client`),
		Args:              o.arguments,
		ValidArgsFunction: e.completePins,
	}
	e.newChange(cmd, func(ctx context.Context, c *change, args []string) error {
		o.change = c
		if o.annotated {
			return o.runAnnotated(ctx)
		}
		return o.run(ctx, args)
	})
	cmd.Flags().BoolVar(&o.restart, "restart", false, "Move no ImagePins; restart the rollout if a digest has changed.")
	addNewRevision(cmd, &o.newRevision)
	cmd.Flags().BoolVar(&o.annotated, "annotated", false, "Refresh all Deployments, StatefulSets and DaemonSets with the annotation "+followTags+": \"true\".")
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "With --annotated, refresh workloads of all namespaces.")
	addInsecureRegistry(cmd, &o.resolver)
	return cmd
}

// addInsecureRegistry adds the flag of commands that resolve tags.
func addInsecureRegistry(cmd *cobra.Command, r *registry.Resolver) {
	cmd.Flags().BoolVar(&r.Insecure, "insecure-registry", false, "Use HTTP for registries that do not serve HTTPS.")
}

func (o *refreshOptions) run(ctx context.Context, args []string) error {
	digests := make(digests)
	return o.eachTarget(ctx, args, func(pins *kube.Pins, t target) error {
		if o.restart {
			if err := restartable(&t, o.newRevision); err != nil {
				return err
			}
		}
		if err := digests.resolve(ctx, o.resolver, t.pins); err != nil {
			return err
		}
		return o.apply(ctx, pins, t, digests)
	})
}

// apply moves the ImagePins of a target, or restarts its rollout.
func (o *refreshOptions) apply(ctx context.Context, pins *kube.Pins, t target, digests digests) error {
	if o.restart {
		return o.restartChanged(ctx, t, digests)
	}
	if len(t.pins) == 0 {
		o.none(t)
	}
	for i := range t.pins {
		if err := o.move(ctx, pins, &t.pins[i], digests[t.pins[i].Spec.Image]); err != nil {
			return err
		}
	}
	return nil
}

// digests are the current digests of tags.
type digests map[string]string

// resolve resolves the images of ImagePins. The error has all that cannot be resolved.
func (d digests) resolve(ctx context.Context, r registry.Resolver, pins []v1alpha1.ImagePin) error {
	var errs []error
	for _, pin := range pins {
		if _, ok := d[pin.Spec.Image]; ok {
			continue
		}
		digest, err := r.Digest(ctx, pin.Spec.Image)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		d[pin.Spec.Image] = digest
	}
	return utilerrors.NewAggregate(errs)
}

// restartable returns an error for a target that refresh --restart cannot compare and restart. It removes the ImagePins of
// images that the pod template does not name: a restart would not bring back an ephemeral container. newRevision is as in
// [canResolve].
func restartable(t *target, newRevision string) error {
	if t.revision == nil {
		return errors.New("--restart needs a Deployment, StatefulSet or DaemonSet, not an ImagePin")
	}
	if err := canRestart(t.object); err != nil {
		return err
	}
	if t.pins = templatePins(t); len(t.pins) == 0 {
		return fmt.Errorf("%s has no ImagePins to compare: to restart it in any case, use kubectl rollout restart", t.revision)
	}
	return canResolve(t, newRevision)
}

// templatePins returns the ImagePins of a target whose images its pod template names.
func templatePins(t *target) []v1alpha1.ImagePin {
	return slices.DeleteFunc(t.pins, func(p v1alpha1.ImagePin) bool { return !names(t.revision, p.Spec.Image) })
}

// restartChanged restarts the rollout of a workload if the digest of a tag has changed. It moves no ImagePins, so that
// "kubectl rollout undo" returns to the digests of the current revision.
func (o *refreshOptions) restartChanged(ctx context.Context, t target, digests digests) error {
	if !o.reportChanged(t, digests, "") {
		return o.done(t.object.Unstructured, unchanged)
	}
	return o.restartRollout(ctx, t.object, nil)
}

// unchanged is what is reported for a workload that is not restarted.
const unchanged = "not restarted, no digest has changed"

// reportChanged prints which digests have changed, each after a prefix. It reports whether there are some.
func (o *refreshOptions) reportChanged(t target, digests digests, prefix string) (changed bool) {
	for _, pin := range t.pins {
		if now := digests[pin.Spec.Image]; now != pin.Spec.Digest {
			changed = true
			fmt.Fprintf(o.ErrOut, "%s%s has changed from %s to %s.\n", prefix, pin.Spec.Image, short(pin.Spec.Digest), short(now))
		}
	}
	return changed
}
