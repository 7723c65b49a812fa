package command

import (
	"context"
	"fmt"
	"slices"

	digest "github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/workload"
)

func (e *env) set() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set KIND/NAME (IMAGE@DIGEST | IMAGE DIGEST)",
		Short: "Pin a tag to a digest for the current revision of a workload",
		Long: templates.LongDesc(`
			Pin a tag to a digest for the current revision of a workload.

			It creates the ImagePin, or moves it if there is one. After at most "recheck" (a setting of nodes, 1 minute by
			default), each container that a node creates runs the digest, also in a running pod. Running containers keep
			theirs. The digest must be one that the repository of the image has; this is not checked.`),
		Example: templates.Examples(`
			# Pin a tag for the current revision of a Deployment
			kubectl imagepin set deployment/web registry.example.com/shop/web:v7@sha256:0a4d33c8e917...

			# Show the ImagePin without creating it
			kubectl imagepin set deployment/web nginx sha256:0a4d33c8e917... --dry-run=client -o yaml`),
		Args:              someArgs(2, 3, "KIND/NAME and IMAGE@DIGEST"),
		ValidArgsFunction: e.completeFirst(""),
	}
	e.newChange(cmd, set)
	return cmd
}

// parsePinned parses IMAGE@DIGEST, or IMAGE and DIGEST.
func parsePinned(args []string) (image string, d digest.Digest, err error) {
	parsed, err := workload.ParseImage(args[0])
	if err != nil {
		return "", "", err
	}
	switch {
	case len(args) == 2 && parsed.Digest != "":
		return "", "", fmt.Errorf("image %q has a digest, and there is another one", args[0])
	case len(args) == 2:
		parsed.Digest = digest.Digest(args[1])
		if err := parsed.Digest.Validate(); err != nil {
			return "", "", fmt.Errorf("invalid digest %.200q: %w", args[1], err)
		}
	case parsed.Digest == "":
		return "", "", fmt.Errorf("image %q has no digest: use IMAGE:TAG@DIGEST", args[0])
	}
	if parsed.Tagged == "" {
		return "", "", fmt.Errorf("image %q has no tag to pin: use IMAGE:TAG@DIGEST", args[0])
	}
	return parsed.Tagged, parsed.Digest, nil
}

func set(ctx context.Context, c *change, args []string) error {
	image, d, err := parsePinned(args[1:])
	if err != nil {
		return err
	}
	namespace, err := c.namespace()
	if err != nil {
		return err
	}
	t, err := c.revision(ctx, namespace, args[0])
	if err != nil {
		return err
	}
	if !names(t.revision, image) {
		fmt.Fprintf(c.ErrOut, "Warning: no container of %s has the image %s\n", t.revision, image)
	}
	client, err := c.clientset()
	if err != nil {
		return err
	}
	ref, err := kube.NewFinder(client).Reference(ctx, t.revision)
	if err != nil {
		return err
	}
	pins, err := c.pins()
	if err != nil {
		return err
	}
	return c.set(ctx, pins, newPin(t.revision, ref, image, d))
}

// newPin returns the ImagePin of an image of a revision, with its owner reference.
func newPin(r *kube.Revision, ref metav1.OwnerReference, image string, d digest.Digest) *v1alpha1.ImagePin {
	return &v1alpha1.ImagePin{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: v1alpha1.Name(r.Owner, image), OwnerReferences: []metav1.OwnerReference{ref}},
		Spec:       v1alpha1.ImagePinSpec{Image: image, Digest: d.String(), Owner: r.Owner},
	}
}

// apply creates an ImagePin, or moves the one that is there.
func (c *change) set(ctx context.Context, pins *kube.Pins, pin *v1alpha1.ImagePin) error {
	there, err := pins.Get(ctx, pin.Namespace, pin.Name)
	if apierrors.IsNotFound(err) {
		if send, dryRun := c.onServer(); send {
			if pin, err = pins.Create(ctx, pin, dryRun); err != nil {
				return err
			}
		}
		return c.donePin(pin, "created")
	}
	if err != nil {
		return err
	}
	if there.Spec.Image != pin.Spec.Image || !there.Spec.Owner.Same(pin.Spec.Owner) {
		return fmt.Errorf("imagepin %s is of another image or owner: %s of %s", there.Name, there.Spec.Image, ownerName(there.Spec.Owner))
	}
	return c.move(ctx, pins, there, pin.Spec.Digest)
}

// names reports whether a revision has a container with an image. It reports true if the containers are not known.
func names(r *kube.Revision, image string) bool {
	return r.Template == nil || slices.ContainsFunc(workload.Containers(r.Template), func(c workload.Container) bool {
		parsed, err := workload.ParseImage(c.Image)
		tagged, ok := parsed.Pinnable()
		return err == nil && ok && tagged == image
	})
}
