package node

import (
	"context"
	"fmt"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// KubeletPod is a pod with one container, as kubelet gets it from the API server.
type KubeletPod struct {
	PodOptions
	// Image is the reference in the pod's spec.
	Image string
	// Gate is kubelet's feature gate RuntimeClassInImageCriApi, which adds the handler to image calls. kubelet's
	// default is off.
	Gate bool
	// Always is the pull policy Always. Without it, an image that ImageStatus finds is not pulled.
	Always bool
	// Unresolved requires that ImageStatus reports no image after the pull: kubelet asks for its size only.
	Unresolved bool
	Auth       *cri.AuthConfig
	// Container has the other options of the container.
	Container ContainerOptions
}

// KubeletResult is the result of [Node.RunAsKubelet].
type KubeletResult struct {
	Pod       *Pod
	Container *Container
	ImageID   string
	Pulled    bool
	// Line is the first line that the container printed.
	Line string
}

// RunAsKubelet runs a pod with the calls of kubelet 1.37, in its order and with only the fields that it sets:
// RunPodSandbox, then ImageStatus, PullImage and ImageStatus with the pod's annotations (and the handler if the gate is
// on), then ImageStatus with only the image, to get its user, then CreateContainer by ID. If a call fails, the result
// has what was created before.
func (n *Node) RunAsKubelet(ctx context.Context, k KubeletPod) (*KubeletResult, error) {
	res := &KubeletResult{}
	var err error
	if res.Pod, err = n.RunPod(ctx, k.PodOptions); err != nil {
		return res, err
	}
	opts, err := n.ImageAsKubelet(ctx, k, res)
	if err != nil {
		return res, err
	}
	res.Container, res.Line, err = n.RunContainer(ctx, res.Pod, opts)
	return res, err
}

// ImageAsKubelet is the part of [Node.RunAsKubelet] between RunPodSandbox and CreateContainer: the calls for the image. It
// returns the options of the container, and sets the image in res, which has the pod.
func (n *Node) ImageAsKubelet(ctx context.Context, k KubeletPod, res *KubeletResult) (ContainerOptions, error) {
	handler := ""
	if k.Gate {
		handler = k.Handler
	}
	spec := func(image string) *cri.ImageSpec {
		return &cri.ImageSpec{Image: image, Annotations: res.Pod.Config.Annotations, RuntimeHandler: handler}
	}
	opts := k.Container
	status, err := n.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec(k.Image)})
	if err != nil {
		return opts, fmt.Errorf("ImageStatus: %w", err)
	}
	res.ImageID = status.GetImage().GetId()
	if k.Always || res.ImageID == "" {
		pulled, err := n.images.PullImage(ctx, &cri.PullImageRequest{Image: spec(k.Image), Auth: k.Auth, SandboxConfig: res.Pod.Config})
		if err != nil {
			return opts, fmt.Errorf("PullImage: %w", err)
		}
		res.ImageID, res.Pulled = pulled.ImageRef, true
		status, err = n.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec(k.Image)})
		if err != nil {
			return opts, fmt.Errorf("ImageStatus after the pull: %w", err)
		}
		if (status.GetImage() == nil) != k.Unresolved {
			if k.Unresolved {
				return opts, fmt.Errorf("ImageStatus after the pull: got %s, want no image", status.GetImage().GetId())
			}
			return opts, fmt.Errorf("ImageStatus after the pull: no image %s", k.Image)
		}
	}
	status, err = n.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: k.Image}})
	if err != nil {
		return opts, fmt.Errorf("ImageStatus for the user: %w", err)
	}
	opts.Image, opts.UserImage, opts.Labels = res.ImageID, k.Image, map[string]string{ContainerNameLabel: "app"}
	if opts.RunAsUser == nil && opts.RunAsUsername == "" {
		switch img := status.GetImage(); {
		case img.GetUid() != nil:
			opts.RunAsUser = &img.Uid.Value
		case img.GetUsername() != "":
			opts.RunAsUsername = img.Username
		default:
			// Without an image or without a user in it, kubelet runs the container as root.
			opts.RunAsUser = new(int64)
		}
	}
	return opts, nil
}
