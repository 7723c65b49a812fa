package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"

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

// each calls fn for each argument. With several arguments, it goes on after an error, as kubectl does, and returns all errors,
// each with its argument. It stops if the context ends, or if the server does not have ImagePins.
func each(ctx context.Context, args []string, fn func(arg string) error) error {
	if len(args) == 1 {
		return fn(args[0])
	}
	var errs []error
	for _, arg := range args {
		err := fn(arg)
		errs = append(errs, withArgument(arg, err)...)
		if ctx.Err() != nil || errors.Is(err, kube.ErrNotServed) {
			break
		}
	}
	return utilerrors.NewAggregate(errs)
}

// withArgument returns the errors of an argument, of which an aggregate has several, each with the argument.
func withArgument(arg string, err error) []error {
	all := flatten(err)
	for i := range all {
		all[i] = fmt.Errorf("%s: %w", arg, all[i])
	}
	return all
}

// flatten returns the errors of an error, of which an aggregate has several.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	if several, ok := err.(utilerrors.Aggregate); ok {
		return utilerrors.Flatten(several).Errors()
	}
	return []error{err}
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
	rev, err := kube.NewFinder(client).Current(ctx, obj.Unstructured)
	return target{object: obj, revision: rev}, err
}
