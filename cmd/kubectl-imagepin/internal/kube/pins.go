package kube

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// FieldManager is the name under which the plugin changes objects.
const FieldManager = "kubectl-imagepin"

// ErrNotServed is the error of all requests to a cluster without the CustomResourceDefinition of ImagePins.
var ErrNotServed = errors.New("the server doesn't have a resource type \"imagepins\": to install it, run 'kubectl imagepin install | kubectl apply -f -'")

// Pins reads and writes ImagePins.
type Pins struct {
	client rest.Interface
	codec  runtime.ParameterCodec
}

// NewPins returns a client for the ImagePins of a cluster.
func NewPins(config *rest.Config) (*Pins, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	c := rest.CopyConfig(config)
	c.APIPath, c.GroupVersion = "/apis", &v1alpha1.GroupVersion
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, err
	}
	return &Pins{client: client, codec: runtime.NewParameterCodec(scheme)}, nil
}

// List lists ImagePins. The namespace is empty for all namespaces.
func (p *Pins) List(ctx context.Context, namespace string, opts metav1.ListOptions) ([]v1alpha1.ImagePin, error) {
	var pins []v1alpha1.ImagePin
	for {
		var list v1alpha1.ImagePinList
		err := p.client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(v1alpha1.Resource).
			VersionedParams(&opts, p.codec).Do(ctx).Into(&list)
		if err != nil {
			return nil, served(err)
		}
		pins = append(pins, list.Items...)
		if opts.Continue = list.Continue; opts.Continue == "" {
			return pins, nil
		}
	}
}

// All returns the ImagePins of a namespace.
func (p *Pins) All(ctx context.Context, namespace string) ([]v1alpha1.ImagePin, error) {
	return p.List(ctx, namespace, metav1.ListOptions{Limit: 500})
}

// Of lists the ImagePins of a revision.
func (p *Pins) Of(ctx context.Context, namespace string, owner v1alpha1.Owner) ([]v1alpha1.ImagePin, error) {
	all, err := p.All(ctx, namespace)
	return slices.DeleteFunc(all, func(pin v1alpha1.ImagePin) bool { return !pin.Spec.Owner.Same(owner) }), err
}

// Get reads an ImagePin.
func (p *Pins) Get(ctx context.Context, namespace, name string) (*v1alpha1.ImagePin, error) {
	pin := &v1alpha1.ImagePin{}
	err := p.client.Get().Namespace(namespace).Resource(v1alpha1.Resource).Name(name).Do(ctx).Into(pin)
	return pin, served(err)
}

// Create creates an ImagePin and returns it as the server has stored it.
func (p *Pins) Create(ctx context.Context, pin *v1alpha1.ImagePin, dryRun bool) (*v1alpha1.ImagePin, error) {
	created := &v1alpha1.ImagePin{}
	opts := &metav1.CreateOptions{FieldManager: FieldManager, DryRun: dryRunAll(dryRun)}
	err := p.client.Post().Namespace(pin.Namespace).Resource(v1alpha1.Resource).
		VersionedParams(opts, p.codec).Body(pin).Do(ctx).Into(created)
	return created, served(err)
}

// Move changes the digest of an ImagePin, which was read before. It fails with a conflict if the ImagePin has changed
// since.
func (p *Pins) Move(ctx context.Context, pin *v1alpha1.ImagePin, digest string, dryRun bool) (*v1alpha1.ImagePin, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pin.UID, "resourceVersion": pin.ResourceVersion},
		"spec":     map[string]any{"digest": digest},
	})
	if err != nil {
		return nil, err
	}
	moved := &v1alpha1.ImagePin{}
	opts := &metav1.PatchOptions{FieldManager: FieldManager, DryRun: dryRunAll(dryRun)}
	err = p.client.Patch(types.MergePatchType).Namespace(pin.Namespace).Resource(v1alpha1.Resource).Name(pin.Name).
		VersionedParams(opts, p.codec).Body(patch).Do(ctx).Into(moved)
	return moved, served(err)
}

// Delete deletes an ImagePin, which was read before. It fails with a conflict if another one has its name.
func (p *Pins) Delete(ctx context.Context, pin *v1alpha1.ImagePin, dryRun bool) error {
	opts := &metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "DeleteOptions"},
		Preconditions: metav1.NewUIDPreconditions(string(pin.UID)), DryRun: dryRunAll(dryRun),
	}
	err := p.client.Delete().Namespace(pin.Namespace).Resource(v1alpha1.Resource).Name(pin.Name).Body(opts).Do(ctx).Error()
	return served(err)
}

// served replaces the error of a server that does not have the resource: it answers with a 404 that is no status object.
func served(err error) error {
	if apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return ErrNotServed
	}
	return err
}

func dryRunAll(dryRun bool) []string {
	if dryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}
