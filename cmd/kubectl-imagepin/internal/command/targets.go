package command

import (
	"context"
	"strings"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
)

// target is what an argument names: an ImagePin, or an object and its current revision.
type target struct {
	pins []v1alpha1.ImagePin
	// object and revision are empty for an ImagePin.
	object   object
	revision *kube.Revision
}

// pinName returns the name of the ImagePin that an argument names: NAME or imagepin/NAME. It reports false for an object
// of another kind.
func pinName(arg string) (string, bool) {
	resource, name, ok := strings.Cut(arg, "/")
	if !ok {
		return arg, true
	}
	resource, group, _ := strings.Cut(strings.ToLower(resource), ".")
	isPin := (resource == "imagepin" || resource == v1alpha1.Resource) && (group == "" || strings.HasSuffix(group, v1alpha1.GroupVersion.Group))
	return name, isPin
}

// target reads what an argument names: an ImagePin, or an object and the ImagePins of its current revision.
func (e *env) target(ctx context.Context, pins *kube.Pins, namespace, arg string) (target, error) {
	if name, ok := pinName(arg); ok {
		pin, err := pins.Get(ctx, namespace, name)
		if err != nil {
			return target{}, err
		}
		return target{pins: []v1alpha1.ImagePin{*pin}}, nil
	}
	t, err := e.revision(ctx, namespace, arg)
	if err != nil {
		return target{}, err
	}
	t.pins, err = pins.Of(ctx, t.revision.Namespace, t.revision.Owner)
	return t, err
}

// revision reads the object that an argument names, and its current revision.
func (e *env) revision(ctx context.Context, namespace, arg string) (target, error) {
	obj, err := e.object(namespace, "", arg)
	if err != nil {
		return target{}, err
	}
	client, err := e.clientset()
	if err != nil {
		return target{}, err
	}
	finder := kube.Finder{Apps: client.AppsV1(), Batch: client.BatchV1()}
	rev, err := finder.Current(ctx, obj.Unstructured)
	return target{object: obj, revision: rev}, err
}
