package kube

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// PodImage is an image that a pod names in its spec.
type PodImage struct {
	Name string // as in the spec
	// PullPolicy is Always, IfNotPresent or Never. The API server sets it if the spec does not.
	PullPolicy string
}

// ImagesOf returns the images of a pod: those of its containers of all kinds, and of its image volumes. It reads the pod without the
// cache of the API server, which may not have an ephemeral container yet.
//
// It fails as [Client.OwnerOf] does.
func (c *Client) ImagesOf(ctx context.Context, pod Pod) ([]PodImage, error) {
	if err := pod.validate(); err != nil {
		return nil, err
	}
	got := &podSpec{}
	err := c.run(ctx, forOwner, func(ctx context.Context, s *session) error {
		key := objectKey{pod.Namespace, pod.Name}
		err := s.read(ctx, s.get(pods, key, false), key, got)
		switch {
		case err == nil && got.UID == pod.UID:
			return nil
		case err == nil, absent(err):
			return unknownPod(pod)
		}
		return s.explain(err, "get "+pods.describe(key), general)
	})
	if err != nil {
		return nil, err
	}
	return got.images(), nil
}

// podSpec has the fields that are used here of the Pod of k8s.io/api/core/v1.
type podSpec struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Containers          []podContainer `json:"containers"`
		InitContainers      []podContainer `json:"initContainers"`
		EphemeralContainers []podContainer `json:"ephemeralContainers"`
		Volumes             []struct {
			Image *struct {
				Reference  string `json:"reference"`
				PullPolicy string `json:"pullPolicy"`
			} `json:"image"`
		} `json:"volumes"`
	} `json:"spec"`
}

type podContainer struct {
	Image           string `json:"image"`
	ImagePullPolicy string `json:"imagePullPolicy"`
}

// DeepCopyObject implements runtime.Object.
func (p *podSpec) DeepCopyObject() runtime.Object {
	c := *p
	return &c
}

func (p *podSpec) images() (all []PodImage) {
	for _, containers := range [][]podContainer{p.Spec.InitContainers, p.Spec.Containers, p.Spec.EphemeralContainers} {
		for _, c := range containers {
			all = append(all, PodImage{c.Image, c.ImagePullPolicy})
		}
	}
	for _, v := range p.Spec.Volumes {
		if v.Image != nil {
			all = append(all, PodImage{v.Image.Reference, v.Image.PullPolicy})
		}
	}
	return all
}
