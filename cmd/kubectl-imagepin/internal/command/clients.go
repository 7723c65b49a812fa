package command

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/kubernetes"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
)

// namespace returns the namespace of the flags, or that of the current context.
func (e *env) namespace() (string, error) {
	namespace, _, err := e.flags.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}

// clientset returns a client for the kinds that are built in.
func (e *env) clientset() (kubernetes.Interface, error) {
	config, err := e.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// pins returns a client for ImagePins.
func (e *env) pins() (*kube.Pins, error) {
	config, err := e.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	return kube.NewPins(config)
}

// object is an object of any kind that an argument names.
type object struct {
	*unstructured.Unstructured
	mapping *meta.RESTMapping
}

// object reads the object that an argument names, KIND/NAME or the name of an object of a default resource.
func (e *env) object(namespace, defaultResource, arg string) (object, error) {
	infos, err := resource.NewBuilder(e.flags).Unstructured().NamespaceParam(namespace).DefaultNamespace().
		ResourceNames(defaultResource, arg).Flatten().Do().Infos()
	if err != nil {
		return object{}, err
	}
	if len(infos) != 1 {
		return object{}, fmt.Errorf("%q names %d objects", arg, len(infos))
	}
	u, err := asUnstructured(infos[0])
	return object{u, infos[0].Mapping}, err
}

func asUnstructured(info *resource.Info) (*unstructured.Unstructured, error) {
	u, ok := info.Object.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("%s: unexpected object %T", info.ObjectName(), info.Object)
	}
	return u, nil
}
