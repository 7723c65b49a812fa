package main

import (
	"context"
	"fmt"
	"os"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
)

// uidLabel is the label that kubelet sets on pods and containers.
const uidLabel = "io.kubernetes.pod.uid"

// podSpec is a pod with one container.
type podSpec struct {
	image string // its reference
	// always is set for imagePullPolicy: Always. Otherwise it is IfNotPresent.
	always bool
}

// podStart is the state of the start of one pod.
type podStart struct {
	podSpec
	k         *kubelet
	config    *cri.PodSandboxConfig
	sandbox   string // its ID
	id        string // of the image; empty if the image is absent
	container string // its ID
}

// podCall is one of kubelet's calls for a pod.
type podCall struct {
	name string
	// only reports whether kubelet makes the call. It is nil if it always does.
	only func(*podStart) bool
	do   func(*podStart, context.Context) error
}

// podCalls are kubelet's calls for a pod with one container, in their order. kubelet makes the last four after the next
// list has shown it that the container runs, here they follow at once.
var podCalls = []podCall{
	{"RunPodSandbox", nil, (*podStart).runSandbox},
	{"PodSandboxStatus", nil, (*podStart).sandboxStatus},
	{"ImageStatus before the pull", ifNotPresent, (*podStart).imageStatus},
	{"PullImage and ImageStatus", absent, (*podStart).pull},
	{"ImageStatus of the user", nil, (*podStart).imageUser},
	{"CreateContainer", nil, (*podStart).create},
	{"StartContainer", nil, (*podStart).startContainer},
	{"ListPodSandbox of the pod", nil, (*podStart).list},
	{"ListContainers of the pod", nil, (*podStart).listContainers},
	{"PodSandboxStatus", nil, (*podStart).sandboxStatus},
	{"ContainerStatus", nil, (*podStart).containerStatus},
}

func ifNotPresent(p *podStart) bool { return !p.always }
func absent(p *podStart) bool       { return p.id == "" }

// start starts a pod. It returns when its container runs.
func (k *kubelet) start(ctx context.Context, spec podSpec) error {
	p := &podStart{podSpec: spec, k: k, config: k.PodConfig(node.PodOptions{})}
	p.config.Labels = map[string]string{uidLabel: p.config.Metadata.Uid}
	for _, c := range podCalls {
		if c.only != nil && !c.only(p) {
			continue
		}
		if err := c.do(p, ctx); err != nil {
			return fmt.Errorf("%s of %s: %w", c.name, spec.image, err)
		}
	}
	return nil
}

func (p *podStart) runSandbox(ctx context.Context) error {
	if err := os.MkdirAll(p.config.LogDirectory, 0o755); err != nil {
		return err
	}
	res, err := p.k.Runtime().RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config})
	p.sandbox = res.GetPodSandboxId()
	return err
}

func (p *podStart) sandboxStatus(ctx context.Context) error {
	_, err := p.k.Runtime().PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.sandbox})
	return err
}

// spec returns the image as kubelet names it in calls for a pod.
func (p *podStart) spec() *cri.ImageSpec {
	return &cri.ImageSpec{Image: p.image, Annotations: p.config.Annotations}
}

func (p *podStart) imageStatus(ctx context.Context) error {
	res, err := p.k.Images().ImageStatus(ctx, &cri.ImageStatusRequest{Image: p.spec()})
	p.id = res.GetImage().GetId()
	return err
}

// pull pulls the image after the pulls before it.
func (p *podStart) pull(ctx context.Context) error {
	if err := p.pullInTurn(ctx); err != nil {
		return err
	}
	if err := p.imageStatus(ctx); err != nil {
		return err
	}
	if p.id == "" {
		return fmt.Errorf("the image is absent after its pull")
	}
	return nil
}

func (p *podStart) pullInTurn(ctx context.Context) error {
	if p.k.pulling != nil {
		select {
		case p.k.pulling <- struct{}{}:
			defer func() { <-p.k.pulling }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	_, err := p.k.Images().PullImage(ctx, &cri.PullImageRequest{Image: p.spec(), SandboxConfig: p.config})
	return err
}

// imageUser looks up the user of the image, by its reference only.
func (p *podStart) imageUser(ctx context.Context) error { return p.k.status(ctx, p.image) }

func (p *podStart) create(ctx context.Context) error {
	config := p.k.ContainerConfig(node.ContainerOptions{Image: p.id, UserImage: p.image, Labels: p.config.Labels})
	res, err := p.k.Runtime().CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.sandbox, Config: config, SandboxConfig: p.config})
	p.container = res.GetContainerId()
	return err
}

func (p *podStart) startContainer(ctx context.Context) error {
	_, err := p.k.Runtime().StartContainer(ctx, &cri.StartContainerRequest{ContainerId: p.container})
	return err
}

func (p *podStart) list(ctx context.Context) error {
	_, err := p.k.Runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: p.config.Labels}})
	return err
}

func (p *podStart) listContainers(ctx context.Context) error {
	_, err := p.k.Runtime().ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: p.config.Labels}})
	return err
}

func (p *podStart) containerStatus(ctx context.Context) error {
	res, err := p.k.Runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: p.container})
	if err == nil && res.Status.State != cri.ContainerState_CONTAINER_RUNNING {
		err = fmt.Errorf("the container is %s", res.Status.State)
	}
	return err
}
