package cri

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// fakeStats is an upstream that returns statistics of pods and containers.
type fakeStats struct {
	runtime.UnimplementedRuntimeServiceServer
	pods       []*runtime.PodSandboxStats
	containers []*runtime.ContainerStats
	lists      int
	err        error // of ListContainers
}

func (m *fakeStats) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest) (*runtime.ListPodSandboxResponse, error) {
	return &runtime.ListPodSandboxResponse{Items: []*runtime.PodSandbox{
		podSandbox("pod-a", "", "a", "", 1), podSandbox("pod-b", "second", "b", "", 2), podSandbox("pod-c", "gone", "c", "", 3),
	}}, nil
}

func (m *fakeStats) ListContainers(context.Context, *runtime.ListContainersRequest) (*runtime.ListContainersResponse, error) {
	m.lists++
	return &runtime.ListContainersResponse{Containers: []*runtime.Container{
		{Id: "a", PodSandboxId: "pod-a"}, {Id: "b", PodSandboxId: "pod-b"}, {Id: "c", PodSandboxId: "pod-c"},
	}}, m.err
}

func (m *fakeStats) PodSandboxStats(context.Context, *runtime.PodSandboxStatsRequest) (*runtime.PodSandboxStatsResponse, error) {
	return &runtime.PodSandboxStatsResponse{Stats: m.pods[0]}, nil
}

func (m *fakeStats) ListPodSandboxStats(context.Context, *runtime.ListPodSandboxStatsRequest) (*runtime.ListPodSandboxStatsResponse, error) {
	return &runtime.ListPodSandboxStatsResponse{Stats: m.pods}, nil
}

func (m *fakeStats) StreamPodSandboxStats(_ *runtime.StreamPodSandboxStatsRequest, s grpc.ServerStreamingServer[runtime.StreamPodSandboxStatsResponse]) error {
	return s.Send(&runtime.StreamPodSandboxStatsResponse{PodSandboxStats: m.pods})
}

func (m *fakeStats) ContainerStats(context.Context, *runtime.ContainerStatsRequest) (*runtime.ContainerStatsResponse, error) {
	return &runtime.ContainerStatsResponse{Stats: m.containers[0]}, nil
}

func (m *fakeStats) ListContainerStats(context.Context, *runtime.ListContainerStatsRequest) (*runtime.ListContainerStatsResponse, error) {
	return &runtime.ListContainerStatsResponse{Stats: m.containers}, nil
}

func (m *fakeStats) StreamContainerStats(_ *runtime.StreamContainerStatsRequest, s grpc.ServerStreamingServer[runtime.StreamContainerStatsResponse]) error {
	return s.Send(&runtime.StreamContainerStatsResponse{ContainerStats: m.containers})
}

// statsClient returns a client of a service whose upstream is m.
func statsClient(t *testing.T, m *fakeStats) runtime.RuntimeServiceClient {
	t.Helper()
	set := ctdtest.Runtimes(t, "first", runtimeplatform.Handler{Name: "second", Snapshotter: "other"})
	upstream := grpc.NewServer()
	runtime.RegisterRuntimeServiceServer(upstream, m)
	front := grpc.NewServer()
	if err := New(Config{
		Upstream: Remote(dial(t, upstream)), Runtimes: ctdtest.Always(set), Ready: alwaysReady,
		Settings: ctdtest.Always(&Settings{SnapshotRoot: func(name string) string { return "/" + name }}),
	}).Register(front); err != nil {
		t.Fatal(err)
	}
	return runtime.NewRuntimeServiceClient(dial(t, front))
}

func attributes(id string) *runtime.ContainerAttributes { return &runtime.ContainerAttributes{Id: id} }

func filesystem(mountpoint string) *runtime.FilesystemIdentifier {
	return &runtime.FilesystemIdentifier{Mountpoint: mountpoint}
}

func linux(id, mountpoint string) *runtime.ContainerStats {
	return &runtime.ContainerStats{
		Attributes:    attributes(id),
		WritableLayer: &runtime.FilesystemUsage{FsId: filesystem(mountpoint), UsedBytes: &runtime.UInt64Value{Value: 7}},
	}
}

func windows(id, mountpoint string) *runtime.WindowsContainerStats {
	return &runtime.WindowsContainerStats{
		Attributes:    attributes(id),
		WritableLayer: &runtime.WindowsFilesystemUsage{FsId: filesystem(mountpoint), UsedBytes: &runtime.UInt64Value{Value: 7}},
	}
}

func linuxPod(containers ...*runtime.ContainerStats) *runtime.PodSandboxStats {
	return &runtime.PodSandboxStats{Linux: &runtime.LinuxPodSandboxStats{Containers: containers}}
}

func windowsPod(containers ...*runtime.WindowsContainerStats) *runtime.PodSandboxStats {
	return &runtime.PodSandboxStats{Windows: &runtime.WindowsPodSandboxStats{Containers: containers}}
}

// TestEmptyMountpointsAreFilledIn checks every message with container statistics, for Linux and Windows.
func TestEmptyMountpointsAreFilledIn(t *testing.T) {
	given := &fakeStats{
		pods: []*runtime.PodSandboxStats{
			windowsPod(windows("a", ""), windows("b", ""), windows("b", "/kept"), windows("c", ""), windows("unknown", ""), &runtime.WindowsContainerStats{Attributes: attributes("a")}),
			linuxPod(linux("a", "/kept"), linux("b", "")),
			{},
		},
		containers: []*runtime.ContainerStats{linux("a", ""), linux("b", "/kept"), linux("b", ""), linux("c", ""), {Attributes: attributes("a")}},
	}
	// The handler of c is no longer configured, and the container "unknown" does not exist.
	wantPods := []*runtime.PodSandboxStats{
		windowsPod(windows("a", "/first"), windows("b", "/other"), windows("b", "/kept"), &runtime.WindowsContainerStats{Attributes: attributes("c")},
			&runtime.WindowsContainerStats{Attributes: attributes("unknown")}, &runtime.WindowsContainerStats{Attributes: attributes("a")}),
		linuxPod(linux("a", "/kept"), linux("b", "/other")),
		{},
	}
	wantContainers := []*runtime.ContainerStats{linux("a", "/first"), linux("b", "/kept"), linux("b", "/other"), {Attributes: attributes("c")}, {Attributes: attributes("a")}}
	client := statsClient(t, given)
	same := func(method string, got, want proto.Message) {
		t.Helper()
		if !proto.Equal(got, want) {
			t.Errorf("%s: got %v\nwant %v", method, got, want)
		}
	}

	pod, err := client.PodSandboxStats(t.Context(), &runtime.PodSandboxStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	same("PodSandboxStats", pod, &runtime.PodSandboxStatsResponse{Stats: wantPods[0]})
	pods, err := client.ListPodSandboxStats(t.Context(), &runtime.ListPodSandboxStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	same("ListPodSandboxStats", pods, &runtime.ListPodSandboxStatsResponse{Stats: wantPods})
	podStream, err := client.StreamPodSandboxStats(t.Context(), &runtime.StreamPodSandboxStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	somePods, err := podStream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	same("StreamPodSandboxStats", somePods, &runtime.StreamPodSandboxStatsResponse{PodSandboxStats: wantPods})

	container, err := client.ContainerStats(t.Context(), &runtime.ContainerStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	same("ContainerStats", container, &runtime.ContainerStatsResponse{Stats: wantContainers[0]})
	containers, err := client.ListContainerStats(t.Context(), &runtime.ListContainerStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	same("ListContainerStats", containers, &runtime.ListContainerStatsResponse{Stats: wantContainers})
	stream, err := client.StreamContainerStats(t.Context(), &runtime.StreamContainerStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	some, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	same("StreamContainerStats", some, &runtime.StreamContainerStatsResponse{ContainerStats: wantContainers})
}

// TestCompleteStatsNeedNoExtraCalls checks that upstream gets no further calls if no mountpoint is empty, as on a node
// with one snapshotter.
func TestCompleteStatsNeedNoExtraCalls(t *testing.T) {
	m := &fakeStats{
		pods: []*runtime.PodSandboxStats{windowsPod(windows("a", "/named"))},
		err:  errors.New("no answer"),
	}
	client := statsClient(t, m)
	resp, err := client.ListPodSandboxStats(t.Context(), &runtime.ListPodSandboxStatsRequest{})
	if err != nil || len(resp.GetStats()) != 1 || m.lists != 0 {
		t.Errorf("got %v, %v, listed containers %d times, want 0", resp, err, m.lists)
	}
	m.pods[0].Windows.Containers[0].WritableLayer.FsId.Mountpoint = ""
	if _, err := client.ListPodSandboxStats(t.Context(), &runtime.ListPodSandboxStatsRequest{}); err == nil {
		t.Error("got no error for an empty mountpoint that cannot be filled in")
	}
}
