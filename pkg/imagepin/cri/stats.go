package cri

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Upstream knows only the directory of the default snapshotter. It reports an empty mountpoint for the filesystem of a
// container on another snapshotter. kubelet looks up the mountpoint on the node. If it does not find one, all of its
// statistics fail: no evictions, no image garbage collection.

func (s *statistics) containerStats(ctx context.Context, r *runtime.ContainerStatsRequest, next func(context.Context, *runtime.ContainerStatsRequest) (*runtime.ContainerStatsResponse, error)) (*runtime.ContainerStatsResponse, error) {
	resp, err := next(ctx, r)
	if err != nil {
		return nil, err
	}
	return resp, s.fillMountpoints(ctx, layersOfContainers(resp.GetStats()))
}

func (s *statistics) listContainerStats(ctx context.Context, r *runtime.ListContainerStatsRequest, next func(context.Context, *runtime.ListContainerStatsRequest) (*runtime.ListContainerStatsResponse, error)) (*runtime.ListContainerStatsResponse, error) {
	resp, err := next(ctx, r)
	if err != nil {
		return nil, err
	}
	return resp, s.fillMountpoints(ctx, layersOfContainers(resp.GetStats()...))
}

func (s *statistics) podSandboxStats(ctx context.Context, r *runtime.PodSandboxStatsRequest, next func(context.Context, *runtime.PodSandboxStatsRequest) (*runtime.PodSandboxStatsResponse, error)) (*runtime.PodSandboxStatsResponse, error) {
	resp, err := next(ctx, r)
	if err != nil {
		return nil, err
	}
	return resp, s.fillMountpoints(ctx, layersOfPods(resp.GetStats()))
}

func (s *statistics) listPodSandboxStats(ctx context.Context, r *runtime.ListPodSandboxStatsRequest, next func(context.Context, *runtime.ListPodSandboxStatsRequest) (*runtime.ListPodSandboxStatsResponse, error)) (*runtime.ListPodSandboxStatsResponse, error) {
	resp, err := next(ctx, r)
	if err != nil {
		return nil, err
	}
	return resp, s.fillMountpoints(ctx, layersOfPods(resp.GetStats()...))
}

func (s *statistics) streamContainerStats(stream grpc.ServerStream) error {
	return relay(stream, s.runtimes.StreamContainerStats, func(resp *runtime.StreamContainerStatsResponse) error {
		return s.fillMountpoints(stream.Context(), layersOfContainers(resp.GetContainerStats()...))
	})
}

func (s *statistics) streamPodSandboxStats(stream grpc.ServerStream) error {
	return relay(stream, s.runtimes.StreamPodSandboxStats, func(resp *runtime.StreamPodSandboxStatsResponse) error {
		return s.fillMountpoints(stream.Context(), layersOfPods(resp.GetPodSandboxStats()...))
	})
}

// relay forwards the stream of upstream and corrects each message.
func relay[Req, Resp any](stream grpc.ServerStream, open func(context.Context, *Req, ...grpc.CallOption) (grpc.ServerStreamingClient[Resp], error), correct func(*Resp) error) error {
	r := new(Req)
	if err := stream.RecvMsg(r); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(outgoing(stream.Context()))
	defer cancel()
	upstream, err := open(ctx, r)
	if err != nil {
		return err
	}
	for {
		resp, err := upstream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := correct(resp); err != nil {
			return err
		}
		if err := stream.SendMsg(resp); err != nil {
			return err
		}
	}
}

// writableLayer is the writable layer in the statistics of a container. The CRI has separate messages for Windows pods.
type writableLayer struct {
	container  string
	filesystem *runtime.FilesystemIdentifier // nil if not reported
	omit       func()
}

func layersOfContainers(stats ...*runtime.ContainerStats) []writableLayer {
	var all []writableLayer
	for _, c := range stats {
		all = append(all, writableLayer{
			container: c.GetAttributes().GetId(), filesystem: c.GetWritableLayer().GetFsId(),
			omit: func() { c.WritableLayer = nil },
		})
	}
	return all
}

func layersOfPods(pods ...*runtime.PodSandboxStats) []writableLayer {
	var all []writableLayer
	for _, p := range pods {
		all = append(all, layersOfContainers(p.GetLinux().GetContainers()...)...)
		for _, c := range p.GetWindows().GetContainers() {
			all = append(all, writableLayer{
				container: c.GetAttributes().GetId(), filesystem: c.GetWritableLayer().GetFsId(),
				omit: func() { c.WritableLayer = nil },
			})
		}
	}
	return all
}

// fillMountpoints fills in empty mountpoints.
func (s *statistics) fillMountpoints(ctx context.Context, layers []writableLayer) error {
	var sandboxOf map[string]string
	for _, l := range layers {
		if l.filesystem == nil || l.filesystem.Mountpoint != "" {
			continue
		}
		if sandboxOf == nil {
			var err error
			if sandboxOf, err = s.sandboxOfContainers(ctx); err != nil {
				return err
			}
		}
		sandbox, err := s.sandboxes.byID(ctx, sandboxOf[l.container])
		if err != nil {
			return err
		}
		if sandbox == nil {
			l.omit() // removed meanwhile
			continue
		}
		rt, err := s.Runtimes().Lookup(sandbox.handler)
		if err != nil {
			// Its handler is no longer configured, so the mountpoint is unknown.
			l.omit()
			continue
		}
		l.filesystem.Mountpoint = s.Settings().SnapshotRoot(rt.Target.Snapshotter)
	}
	return nil
}

func (s *statistics) sandboxOfContainers(ctx context.Context) (map[string]string, error) {
	resp, err := s.runtimes.ListContainers(untraced(ctx), &runtime.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("find the filesystems of containers: %w", err)
	}
	of := make(map[string]string, len(resp.GetContainers()))
	for _, c := range resp.GetContainers() {
		of[c.GetId()] = c.GetPodSandboxId()
	}
	return of, nil
}
