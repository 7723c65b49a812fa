package stock

import (
	"errors"
	"io"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestStatsNameTheFilesystem checks that every statistics call of the CRI names the filesystem of a container's
// snapshotter, as ImageFsInfo does. If one filesystem is empty, kubelet has no statistics at all.
func TestStatsNameTheFilesystem(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative, StatsCollectPeriod: 1})
	opts := images.Options{}
	ref, _ := r.Push("app:v1", opts, images.HostPlatform())
	filesystems, err := r.Images().ImageFsInfo(r.Ctx, &cri.ImageFsInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{} // container → mountpoint
	var pods []*node.Pod
	for i, handler := range []string{"", testkit.Second} {
		r.MustPull(ref, handler)
		pod := r.MustPod(handler)
		c := r.WantLine(pod, node.ContainerOptions{Image: ref}, opts.Line(0))
		want[c.ID] = filesystems.ImageFilesystems[i].FsId.Mountpoint
		pods = append(pods, pod)
	}
	listed := func() []*cri.ContainerStats {
		resp, err := r.Runtime().ListContainerStats(r.Ctx, &cri.ListContainerStatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Stats
	}
	// containerd collects statistics periodically.
	r.Eventually("both containers have statistics", func() bool {
		n := 0
		for _, s := range listed() {
			if s.WritableLayer != nil {
				n++
			}
		}
		return n == len(want)
	})
	forms := map[string][]*cri.ContainerStats{"ListContainerStats": listed()}
	for id := range want {
		resp, err := r.Runtime().ContainerStats(r.Ctx, &cri.ContainerStatsRequest{ContainerId: id})
		if err != nil {
			t.Fatal(err)
		}
		forms["ContainerStats"] = append(forms["ContainerStats"], resp.Stats)
	}
	for _, pod := range pods {
		resp, err := r.Runtime().PodSandboxStats(r.Ctx, &cri.PodSandboxStatsRequest{PodSandboxId: pod.ID})
		if err != nil {
			t.Fatal(err)
		}
		forms["PodSandboxStats"] = append(forms["PodSandboxStats"], resp.Stats.Linux.Containers...)
	}
	all, err := r.Runtime().ListPodSandboxStats(r.Ctx, &cri.ListPodSandboxStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all.Stats {
		forms["ListPodSandboxStats"] = append(forms["ListPodSandboxStats"], s.Linux.Containers...)
	}
	containers, err := r.Runtime().StreamContainerStats(r.Ctx, &cri.StreamContainerStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		resp, err := containers.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		forms["StreamContainerStats"] = append(forms["StreamContainerStats"], resp.ContainerStats...)
	}
	sandboxes, err := r.Runtime().StreamPodSandboxStats(r.Ctx, &cri.StreamPodSandboxStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		resp, err := sandboxes.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range resp.PodSandboxStats {
			forms["StreamPodSandboxStats"] = append(forms["StreamPodSandboxStats"], s.Linux.Containers...)
		}
	}
	for _, form := range []string{
		"ContainerStats", "ListContainerStats", "PodSandboxStats", "ListPodSandboxStats", "StreamContainerStats", "StreamPodSandboxStats",
	} {
		if len(forms[form]) != len(want) {
			t.Errorf("%s: got %d containers, want %d", form, len(forms[form]), len(want))
		}
		for _, s := range forms[form] {
			if got := s.GetWritableLayer().GetFsId().GetMountpoint(); got != want[s.GetAttributes().GetId()] {
				t.Errorf("%s: got filesystem %q, want %q", form, got, want[s.GetAttributes().GetId()])
			}
		}
	}
}
