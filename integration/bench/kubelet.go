package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
)

// The calls in this file and in kubeletpod.go are those of kubelet 1.36.3 with its default configuration, recorded once
// with the proxy of integration/kubelet/cluster: its start, pods whose images were present and absent, with both pull
// policies, and a minute with six running pods. kubelet calls from a goroutine for each pod, all at once, and from one
// for each period. integration/kubelet/wire_test.go fails if the calls about images change.

// kubelet replays kubelet's calls to a side.
type kubelet struct {
	*side
	// pulling limits pulls to one at a time, as serializeImagePulls does. It is nil if there is no limit.
	pulling chan struct{}
}

// newKubelet returns a kubelet. parallel is set for serializeImagePulls: false without maxParallelImagePulls.
func newKubelet(s *side, parallel bool) *kubelet {
	k := &kubelet{side: s}
	if !parallel {
		k.pulling = make(chan struct{}, 1)
	}
	return k
}

// call is a call for no pod in particular.
type call struct {
	name string
	do   func(context.Context, *kubelet) error
}

var (
	version = call{"Version", func(ctx context.Context, k *kubelet) error {
		_, err := k.Runtime().Version(ctx, &cri.VersionRequest{Version: "0.1.0"})
		return err
	}}
	status = call{"Status", func(ctx context.Context, k *kubelet) error {
		_, err := k.Runtime().Status(ctx, &cri.StatusRequest{})
		return err
	}}
	runtimeConfig = call{"RuntimeConfig", func(ctx context.Context, k *kubelet) error {
		_, err := k.Runtime().RuntimeConfig(ctx, &cri.RuntimeConfigRequest{})
		return err
	}}
	imageFsInfo = call{"ImageFsInfo", func(ctx context.Context, k *kubelet) error {
		_, err := k.Images().ImageFsInfo(ctx, &cri.ImageFsInfoRequest{})
		return err
	}}
	listImages = call{"ListImages", func(ctx context.Context, k *kubelet) error {
		_, err := k.ListImages(ctx)
		return err
	}}
	listSandboxes      = call{"ListPodSandbox", listSandboxesWith(&cri.PodSandboxFilter{})}
	listReady          = call{"ListPodSandbox", listSandboxesWith(&cri.PodSandboxFilter{State: &cri.PodSandboxStateValue{}})}
	listContainers     = call{"ListContainers", listContainersWith(&cri.ContainerFilter{})}
	listRunning        = call{"ListContainers", listContainersWith(running)}
	listContainerStats = call{"ListContainerStats", func(ctx context.Context, k *kubelet) error {
		_, err := k.Runtime().ListContainerStats(ctx, &cri.ListContainerStatsRequest{Filter: &cri.ContainerStatsFilter{}})
		return err
	}}
	// statuses are for the rotation of logs.
	statuses = call{"ContainerStatus", func(ctx context.Context, k *kubelet) error {
		res, err := k.Runtime().ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{}})
		if err != nil {
			return err
		}
		for _, c := range res.Containers {
			if _, err := k.Runtime().ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id}); err != nil {
				return err
			}
		}
		return nil
	}}
)

var running = &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}

func listSandboxesWith(f *cri.PodSandboxFilter) func(context.Context, *kubelet) error {
	return func(ctx context.Context, k *kubelet) error {
		_, err := k.Runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: f})
		return err
	}
}

func listContainersWith(f *cri.ContainerFilter) func(context.Context, *kubelet) error {
	return func(ctx context.Context, k *kubelet) error {
		_, err := k.Runtime().ListContainers(ctx, &cri.ListContainersRequest{Filter: f})
		return err
	}
}

// startCalls are the calls from kubelet's start until its first pods, in their order. Some were concurrent.
var startCalls = []call{
	version, imageFsInfo, runtimeConfig, runtimeConfig, runtimeConfig, version, status,
	listContainers, listSandboxes, listImages, listImages, listImages, status, listSandboxes, listContainers, listSandboxes, listContainers,
	listContainers, listSandboxes, listContainers, imageFsInfo, version, listSandboxes, listContainers, version, imageFsInfo, listContainers, status,
	imageFsInfo,
}

// period has the calls that kubelet repeats, in their order.
type period struct {
	every time.Duration // between the end of the calls and their next start
	calls []call
}

var periods = []period{
	{time.Second, []call{listSandboxes, listContainers}}, // genericPlegRelistPeriod
	{2 * time.Second, []call{listReady, listRunning}},    // housekeepingPeriod
	{5 * time.Second, []call{status}},
	{10 * time.Second, []call{version}},                                                        // nodeStatusUpdateFrequency
	{10 * time.Second, []call{imageFsInfo, listContainers, listSandboxes, listContainerStats}}, // evictionMonitoringPeriod
	{10 * time.Second, []call{statuses}},                                                       // containerLogMonitorInterval
	{30 * time.Second, []call{listImages}},                                                     // the image cache of the garbage collector
}

// begin makes the calls of kubelet's start.
func (k *kubelet) begin(ctx context.Context) error {
	for _, c := range startCalls {
		if err := c.do(ctx, k); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// run starts the pods, all at once, with the repeated calls beside them. It returns when all their containers run.
func (k *kubelet) run(ctx context.Context, pods []podSpec) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var repeated sync.WaitGroup
	broken := make(chan error, len(periods))
	for _, p := range periods {
		repeated.Go(func() { broken <- k.repeat(ctx, p) })
	}
	var started sync.WaitGroup
	errs := make(chan error, len(pods))
	for _, p := range pods {
		started.Go(func() { errs <- k.start(ctx, p) })
	}
	started.Wait()
	cancel()
	repeated.Wait()
	close(errs)
	close(broken)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	for err := range broken {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// repeat makes the calls of a period until ctx ends.
func (k *kubelet) repeat(ctx context.Context, p period) error {
	for {
		if pause(ctx, p.every) != nil {
			return nil
		}
		for _, c := range p.calls {
			if err := c.do(ctx, k); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
}

// removePods removes all pods, eight at a time.
func (k *kubelet) removePods(ctx context.Context) error {
	res, err := k.Runtime().ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var ids []string
	for _, p := range res.Items {
		ids = append(ids, p.Id)
	}
	const atATime = 8
	return concurrently(ids, atATime, func(id string) error { return k.RemovePod(ctx, &node.Pod{ID: id}) })
}
