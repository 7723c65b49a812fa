package cri

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The service behind knows where the default snapshotter keeps its data, and
// names the filesystem of a container on another one by an empty mountpoint.
// kubelet looks the mountpoint up on the node, and one that it does not find
// fails its statistics as a whole: no evictions, no image garbage collection.

func (s *statistics) containerStats(ctx context.Context, r *runtime.ContainerStatsRequest, next func(context.Context, *runtime.ContainerStatsRequest) (*runtime.ContainerStatsResponse, error)) (*runtime.ContainerStatsResponse, error) {
	resp, err := next(ctx, r)
	if err != nil {
		return nil, err
	}
	return resp, s.nameFilesystems(ctx, layersOfContainers(resp.GetStats()))
}

func (s *statistics) listContainerStats(ctx context.Context, r *runtime.ListContainerStatsRequest, next func(context.Context, *runtime.ListContainerStatsRequest) (*runtime.ListContainerStatsResponse, error)) (*runtime.ListContainerStatsResponse, error) {
	resp, err := next(ctx, r)
	if err != nil {
		return nil, err
	}
	return resp, s.nameFilesystems(ctx, layersOfContainers(resp.GetStats()...))
}

func (s *statistics) podSandboxStats(ctx context.Context, r *runtime.PodSandboxStatsRequest, next func(context.Context, *runtime.PodSandboxStatsRequest) (*runtime.PodSandboxStatsResponse, error)) (*runtime.PodSandboxStatsResponse, error) {
	resp, err := next(ctx, r)
	if err != nil {
		return nil, err
	}
	return resp, s.nameFilesystems(ctx, layersOfPods(resp.GetStats()))
}

func (s *statistics) listPodSandboxStats(ctx context.Context, r *runtime.ListPodSandboxStatsRequest, next func(context.Context, *runtime.ListPodSandboxStatsRequest) (*runtime.ListPodSandboxStatsResponse, error)) (*runtime.ListPodSandboxStatsResponse, error) {
	resp, err := next(ctx, r)
	if err != nil {
		return nil, err
	}
	return resp, s.nameFilesystems(ctx, layersOfPods(resp.GetStats()...))
}

func (s *statistics) streamContainerStats(stream grpc.ServerStream) error {
	return relay(stream, s.runtimes.StreamContainerStats, func(resp *runtime.StreamContainerStatsResponse) error {
		return s.nameFilesystems(stream.Context(), layersOfContainers(resp.GetContainerStats()...))
	})
}

func (s *statistics) streamPodSandboxStats(stream grpc.ServerStream) error {
	return relay(stream, s.runtimes.StreamPodSandboxStats, func(resp *runtime.StreamPodSandboxStatsResponse) error {
		return s.nameFilesystems(stream.Context(), layersOfPods(resp.GetPodSandboxStats()...))
	})
}

// relay passes the answers of the service behind on, each corrected.
func relay[Req, Resp any](stream grpc.ServerStream, open func(context.Context, *Req, ...grpc.CallOption) (grpc.ServerStreamingClient[Resp], error), correct func(*Resp) error) error {
	r := new(Req)
	if err := stream.RecvMsg(r); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(outgoing(stream.Context()))
	defer cancel()
	behind, err := open(ctx, r)
	if err != nil {
		return err
	}
	for {
		resp, err := behind.Recv()
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

// writableLayer is what the statistics of a container say of its writable
// layer. The CRI has messages of their own for pods of Windows.
type writableLayer struct {
	container  string
	filesystem *runtime.FilesystemIdentifier // nil where they say nothing
	leaveOut   func()
}

func layersOfContainers(stats ...*runtime.ContainerStats) []writableLayer {
	var all []writableLayer
	for _, c := range stats {
		all = append(all, writableLayer{
			container: c.GetAttributes().GetId(), filesystem: c.GetWritableLayer().GetFsId(),
			leaveOut: func() { c.WritableLayer = nil },
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
				leaveOut: func() { c.WritableLayer = nil },
			})
		}
	}
	return all
}

// nameFilesystems fills in the mountpoints that are empty.
func (s *statistics) nameFilesystems(ctx context.Context, layers []writableLayer) error {
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
			l.leaveOut() // it has just gone
			continue
		}
		rt, err := s.Runtimes().Lookup(sandbox.handler)
		if err != nil {
			// Its handler is no longer configured: what nobody can name is
			// better left out.
			l.leaveOut()
			continue
		}
		l.filesystem.Mountpoint = s.Settings().SnapshotRoot(rt.Target.Snapshotter)
	}
	return nil
}

func (s *statistics) sandboxOfContainers(ctx context.Context) (map[string]string, error) {
	resp, err := s.runtimes.ListContainers(untraced(ctx), &runtime.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("whose filesystems the containers use: %w", err)
	}
	of := make(map[string]string, len(resp.GetContainers()))
	for _, c := range resp.GetContainers() {
		of[c.GetId()] = c.GetPodSandboxId()
	}
	return of, nil
}
