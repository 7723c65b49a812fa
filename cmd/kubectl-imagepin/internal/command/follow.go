package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
)

const (
	// followTags is the annotation of the workloads that refresh --annotated refreshes, if its value is "true".
	followTags = "imagepin.io/follow-tags"
	// restartedFor is the annotation of a workload with the digests for which refresh --annotated has restarted it, so that it
	// is not restarted again for them, whatever its nodes resolve the tags to.
	restartedFor = "imagepin.io/restarted-for"
)

// followed are the kinds that refresh --annotated refreshes.
const followed = "deployments.apps,statefulsets.apps,daemonsets.apps"

// arguments checks the flags and the arguments: names, or none with --annotated.
func (o *refreshOptions) arguments(cmd *cobra.Command, args []string) error {
	if err := checkNewRevision(cmd, o.newRevision, o.restart); err != nil {
		return err
	}
	switch {
	case o.annotated && len(args) > 0:
		return cmdutil.UsageErrorf(cmd, "--annotated cannot be used with names")
	case o.allNamespaces && !o.annotated:
		return cmdutil.UsageErrorf(cmd, "--all-namespaces needs --annotated")
	case o.annotated:
		return nil
	}
	return someArgs(1, -1, "NAME or KIND/NAME")(cmd, args)
}

// follower refreshes the workloads that ask for it by their annotation.
type follower struct {
	*refreshOptions
	pins    *kube.Pins
	finder  *kube.Finder
	digests digests
	// listed has the ImagePins of the namespaces that were read.
	listed map[string][]v1alpha1.ImagePin
}

// runAnnotated refreshes all workloads with the annotation followTags. It goes on after an error.
func (o *refreshOptions) runAnnotated(ctx context.Context) error {
	objects, err := o.annotatedObjects()
	if err != nil {
		return err
	}
	client, err := o.clientset()
	if err != nil {
		return err
	}
	pins, err := o.change.pins()
	if err != nil {
		return err
	}
	f := &follower{refreshOptions: o, pins: pins, finder: kube.NewFinder(client), digests: make(digests), listed: make(map[string][]v1alpha1.ImagePin)}
	if len(objects) == 0 {
		fmt.Fprintf(o.ErrOut, "No workloads with the annotation %s: \"true\" found.\n", followTags)
	}
	var errs []error
	for _, obj := range objects {
		err := f.follow(ctx, obj)
		errs = append(errs, withArgument(pathOf(obj), err)...)
		if ctx.Err() != nil || errors.Is(err, kube.ErrNotServed) {
			break
		}
	}
	return utilerrors.NewAggregate(errs)
}

// pathOf returns an object's namespace, kind and name, for messages about objects of several namespaces.
func pathOf(o object) string {
	return o.GetNamespace() + "/" + strings.ToLower(o.GetKind()) + "/" + o.GetName()
}

// annotatedObjects reads the workloads with the annotation followTags.
func (o *refreshOptions) annotatedObjects() ([]object, error) {
	namespace, err := o.namespace()
	if err != nil {
		return nil, err
	}
	infos, err := resource.NewBuilder(o.flags).Unstructured().NamespaceParam(namespace).DefaultNamespace().AllNamespaces(o.allNamespaces).
		ResourceTypeOrNameArgs(true, followed).RequestChunksOf(cmdutil.DefaultChunkSize).Flatten().Do().Infos()
	if err != nil {
		return nil, err
	}
	var found []object
	for _, info := range infos {
		u, err := asUnstructured(info)
		if err != nil {
			return nil, err
		}
		if u.GetAnnotations()[followTags] == "true" {
			found = append(found, object{u, info.Mapping})
		}
	}
	return found, nil
}

// follow refreshes a workload. A workload that cannot be compared yet is reported, and not an error: a later run compares it.
func (f *follower) follow(ctx context.Context, obj object) error {
	rev, err := f.finder.Current(ctx, obj.Unstructured)
	if errors.Is(err, kube.ErrNotObserved) {
		return f.skip(obj, kube.ErrNotObserved.Error())
	}
	if err != nil {
		return err
	}
	all, err := f.pinsIn(ctx, obj.GetNamespace())
	if err != nil {
		return err
	}
	t := target{object: obj, revision: rev, pins: pinsOf(all, rev.Owner)}
	if !f.restart {
		if err := f.digests.resolve(ctx, f.resolver, t.pins); err != nil {
			return err
		}
		return f.apply(ctx, f.pins, t, f.digests)
	}
	if t.pins = templatePins(&t); len(t.pins) == 0 {
		return f.skip(obj, rev.String()+" has no ImagePins yet")
	}
	if err := canRestart(obj); err != nil {
		return f.skip(obj, err.Error())
	}
	if err := canResolve(&t, f.newRevision); err != nil {
		return err
	}
	if err := f.digests.resolve(ctx, f.resolver, t.pins); err != nil {
		return err
	}
	return f.restartFollowing(ctx, t, all)
}

// skip reports why a workload is not refreshed.
func (f *follower) skip(obj object, why string) error {
	fmt.Fprintf(f.ErrOut, "%s: skipped, %s\n", pathOf(obj), why)
	return nil
}

func (f *follower) pinsIn(ctx context.Context, namespace string) ([]v1alpha1.ImagePin, error) {
	if all, ok := f.listed[namespace]; ok {
		return all, nil
	}
	all, err := f.pins.All(ctx, namespace)
	if err == nil {
		f.listed[namespace] = all
	}
	return all, err
}

// pinsOf returns the ImagePins of a revision.
func pinsOf(all []v1alpha1.ImagePin, owner v1alpha1.Owner) (of []v1alpha1.ImagePin) {
	for _, p := range all {
		if p.Spec.Owner.Same(owner) {
			of = append(of, p)
		}
	}
	return of
}

// restartFollowing restarts a workload if a digest has changed, unless it was restarted for these digests before, or was rolled
// back from a revision that has them.
func (f *follower) restartFollowing(ctx context.Context, t target, all []v1alpha1.ImagePin) error {
	if !f.reportChanged(t, f.digests, pathOf(t.object)+": ") {
		return f.done(t.object.Unstructured, unchanged)
	}
	value := f.digests.text(t.pins)
	if t.object.GetAnnotations()[restartedFor] == value {
		return f.skip(t.object, "it was restarted for this before: its nodes resolve the tag to another digest, or it was rolled back")
	}
	others, err := f.finder.Owners(ctx, t.object.Unstructured)
	if err != nil {
		return err
	}
	if newer := newerRevision(t, all, others, f.digests); newer != "" {
		return f.skip(t.object, "it was rolled back from "+newer+", which has this digest")
	}
	return f.restartAsRead(ctx, t.object, value)
}

// restartAsRead restarts a workload unless its spec has changed since it was read: that may have rolled out the new digests.
// value is that of the annotation restartedFor.
func (f *follower) restartAsRead(ctx context.Context, obj object, value string) error {
	for read := obj; ; {
		err := f.restartRollout(ctx, obj, map[string]any{
			"resourceVersion": obj.GetResourceVersion(), "annotations": map[string]any{restartedFor: value},
		})
		if !apierrors.IsConflict(err) {
			return err
		}
		if obj, err = f.object(read.GetNamespace(), "", read.mapping.Resource.GroupResource().String()+"/"+read.GetName()); err != nil {
			return err
		}
		if obj.GetUID() != read.GetUID() || obj.GetGeneration() != read.GetGeneration() {
			return f.skip(read, "it has changed meanwhile")
		}
	}
}

// text returns the current digests of the images of ImagePins as text.
func (d digests) text(pins []v1alpha1.ImagePin) string {
	var all []string
	for _, p := range pins {
		all = append(all, p.Spec.Image+"@"+d[p.Spec.Image])
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

// newerRevision returns a revision of the same workload that has all current digests of the tags, and whose ImagePins are newer
// than those of the current one. It is empty if there is none. owned reports the owners of the workload's revisions by UID.
func newerRevision(t target, all []v1alpha1.ImagePin, owned map[string]bool, digests digests) string {
	for _, other := range all {
		owner := other.Spec.Owner
		if owner.Same(t.revision.Owner) || !owned[string(owner.UID)] {
			continue
		}
		if of := pinsOf(all, owner); slices.ContainsFunc(t.pins, func(p v1alpha1.ImagePin) bool { return !hasNewer(of, p, digests) }) {
			continue
		}
		return (&kube.Revision{Owner: owner}).String()
	}
	return ""
}

// hasNewer reports whether a revision has an ImagePin for the same image as p, with the tag's current digest and newer than p.
func hasNewer(pins []v1alpha1.ImagePin, p v1alpha1.ImagePin, digests digests) bool {
	return slices.ContainsFunc(pins, func(q v1alpha1.ImagePin) bool {
		return q.Spec.Image == p.Spec.Image && q.Spec.Digest == digests[p.Spec.Image] && q.CreationTimestamp.After(p.CreationTimestamp.Time)
	})
}
