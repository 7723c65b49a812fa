package kube

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Pod identifies a pod, with the values of a PodSandboxConfig of the CRI.
type Pod struct {
	Namespace, Name string
	UID             types.UID
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// validate rejects names that no pod in the Kubernetes API has. crictl accepts any name for a pod.
func (p Pod) validate() error {
	for _, name := range []string{p.Namespace, p.Name} {
		if err := segment(name); err != nil {
			return imagepin.Invalid("pod", p.String(), err)
		}
	}
	if p.UID == "" {
		return imagepin.Invalid("pod", p.String(), errors.New("no UID"))
	}
	return nil
}

// segment rejects a name that cannot be a segment of a path of the API.
func segment(name string) error {
	if name == "" {
		return errors.New("empty name")
	}
	if msgs := rest.IsValidPathSegmentName(name); len(msgs) > 0 {
		return fmt.Errorf("name %q %s", name, msgs[0])
	}
	return nil
}
