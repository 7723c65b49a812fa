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

// TestStatsNameTheFilesystem looks at the statistics of containers on two snapshotters, in every form that CRI has them: each
// names the filesystem of its snapshotter as ImageFsInfo does. kubelet has none at all if one is empty.
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
	// containerd measures now and then.
	r.Eventually("both containers have been measured", func() bool {
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
			t.Errorf("%s has %d containers, not %d", form, len(forms[form]), len(want))
		}
		for _, s := range forms[form] {
			if got := s.GetWritableLayer().GetFsId().GetMountpoint(); got != want[s.GetAttributes().GetId()] {
				t.Errorf("%s: a container's filesystem is %q, not %q", form, got, want[s.GetAttributes().GetId()])
			}
		}
	}
}
