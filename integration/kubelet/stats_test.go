package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// summary is the part of kubelet's /stats/summary that the tests read.
type summary struct {
	Node struct {
		Fs      fsStats
		Runtime struct{ ImageFs, ContainerFs fsStats }
	}
	Pods []struct {
		PodRef     struct{ Name string }
		Containers []struct {
			Name   string
			Rootfs fsStats
		}
	}
}

type fsStats struct{ CapacityBytes, AvailableBytes, UsedBytes *uint64 }

func (f fsStats) complete() bool {
	return f.CapacityBytes != nil && *f.CapacityBytes > 0 && f.AvailableBytes != nil && *f.AvailableBytes > 0 && f.UsedBytes != nil
}

// waitSummary waits until the summary has the statistics of images and containers, including the root filesystems of
// pods, and until a condition holds. rootfs is the root filesystem of each pod's only container, by the pod's name.
func (r *kubeletRig) waitSummary(pods []*core.Pod, condition func(imageFs fsStats, rootfs map[string]fsStats) bool) {
	r.T.Helper()
	var last summary
	var lastErr error
	defer func() {
		if r.T.Failed() {
			b, _ := json.Marshal(last)
			r.T.Logf("last summary: %s, %v", b, lastErr)
		}
	}()
	testkit.EventuallyIn(r.T, time.Minute, "/stats/summary is complete and the condition holds", func(ctx context.Context) (bool, error) {
		var s summary
		// A kubelet that has just started does not have all statistics.
		if lastErr = r.k.Summary(ctx, &s); lastErr != nil {
			return false, nil
		}
		last = s
		rootfs := map[string]fsStats{}
		for _, p := range s.Pods {
			for _, c := range p.Containers {
				if c.Rootfs.complete() {
					rootfs[p.PodRef.Name] = c.Rootfs
				}
			}
		}
		for _, p := range pods {
			if _, ok := rootfs[p.Name]; !ok {
				return false, nil
			}
		}
		img := s.Node.Runtime.ImageFs
		return img.complete() && s.Node.Runtime.ContainerFs.complete() && condition(img, rootfs), nil
	})
}

// waitHealthy waits until the node is ready and under no pressure. It fails the test if kubelet's eviction manager has
// failed to get statistics. With stock containerd it fails, because the mountpoint of the second snapshotter is empty.
func (r *kubeletRig) waitHealthy() {
	r.T.Helper()
	var last core.NodeStatus
	defer func() {
		if r.T.Failed() {
			r.T.Logf("last conditions of the node: %v", last.Conditions)
		}
	}()
	testkit.EventuallyIn(r.T, time.Minute, "the node is ready and under no pressure", func(ctx context.Context) (bool, error) {
		var err error
		last, err = r.k.Status(ctx)
		return len(last.Conditions) > 0 && !slices.ContainsFunc(last.Conditions, func(c core.NodeCondition) bool {
			return (c.Status == core.ConditionTrue) != (c.Type == core.NodeReady)
		}), err
	})
	for line := range strings.Lines(r.k.LogTail(1 << 20)) {
		if strings.Contains(line, "failed to get summary stats") && strings.Contains(line, "mountpoint") {
			r.T.Errorf("kubelet's eviction manager failed: %s", line)
		}
	}
}

// testStats checks that kubelet has the statistics of images and containers on a node with two snapshotters, and that
// the node's status lists the image of each platform.
func (r *kubeletRig) testStats() {
	opts := images.Options{Version: "stats"}
	ref, _ := r.push("app/stats:v1", opts)
	var pods []*core.Pod
	for _, class := range classes {
		p := r.pod("stats-"+title(class), class, ref, core.PullIfNotPresent)
		r.create(p)
		r.wantLine(p, line(class, opts, 0))
		defer r.delete(p)
		pods = append(pods, p)
	}
	r.waitSummary(pods, func(imageFs fsStats, _ map[string]fsStats) bool { return *imageFs.UsedBytes > 0 })
	// kubelet lists images only twice a minute, so look for the image of an earlier case.
	tag := r.kept[0].refs[core.PullIfNotPresent]
	sizes := map[int64]bool{}
	for _, class := range classes {
		img, err := r.ImageStatus(r.Ctx, tag, handler(class))
		if err != nil || img == nil {
			r.T.Fatalf("ImageStatus for class %s: got %v, %v, want an image", title(class), img, err)
		}
		sizes[int64(img.Size)] = true
	}
	if len(sizes) != 2 {
		r.T.Fatalf("images of two platforms: got sizes %v, want two different sizes", sizes)
	}
	testkit.EventuallyIn(r.T, time.Minute, "the node's status lists the images of both platforms", func(ctx context.Context) (bool, error) {
		status, err := r.k.Status(ctx)
		if err != nil {
			return false, err
		}
		listed := map[int64]bool{}
		for _, i := range status.Images {
			if slices.Contains(i.Names, tag) {
				listed[i.SizeBytes] = true
			}
		}
		return maps.Equal(listed, sizes), nil
	})
	r.waitHealthy()
}

// TestTwoDisks runs a node whose two snapshotters are on separate disks. kubelet gets the disk of each container's root
// filesystem, and for images the disk of the default snapshotter. If that disk runs full, kubelet's image garbage
// collection frees space on both disks.
func TestTwoDisks(t *testing.T) {
	t.Parallel()
	const big = 100 << 20 // bytes of the unused image
	disks := map[string]string{"overlayfs": disk(t, 192), "native": disk(t, 224)}
	r := newRig(t, "disks", node.Options{Extra: fmt.Sprintf(`
[plugins."io.containerd.snapshotter.v1.overlayfs"]
  root_path = %q
[plugins."io.containerd.snapshotter.v1.native"]
  root_path = %q
`, disks["overlayfs"], disks["native"])}, cluster.KubeletOptions{})
	capacity := func(snapshotter string) uint64 { return statfs(t, disks[snapshotter]).capacity }
	on := map[string]string{"": "overlayfs", second: "native", other: "overlayfs"}

	opts := images.Options{Version: "disks"}
	ref, _ := r.push("app/disks:v1", opts)
	unused, _ := r.push("app/unused:v1", images.Options{Version: "unused", Random: []images.Random{{Size: big, Zero: true}}})
	var pods []*core.Pod
	for _, class := range classes {
		p := r.pod(title(class), class, ref, core.PullIfNotPresent)
		p.Spec.PriorityClassName = "system-node-critical" // under pressure kubelet evicts other pods
		r.create(p)
		pods = append(pods, r.wantLine(p, line(class, opts, 0)))
	}
	wantDisks := func(used func(uint64) bool) {
		t.Helper()
		r.waitSummary(pods, func(imageFs fsStats, rootfs map[string]fsStats) bool {
			for i, class := range classes {
				if got := *rootfs[pods[i].Name].CapacityBytes; got != capacity(on[class]) {
					t.Fatalf("root filesystem of a container of class %s: got capacity %d, want %d", title(class), got, capacity(on[class]))
				}
			}
			if got := *imageFs.CapacityBytes; got != capacity("overlayfs") {
				t.Fatalf("image filesystem: got capacity %d, want %d", got, capacity("overlayfs"))
			}
			return used(*imageFs.UsedBytes)
		})
	}
	wantDisks(func(used uint64) bool { return used < big })
	r.waitHealthy()

	if err := r.k.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, class := range []string{"", second} {
		if _, err := r.Pull(r.Ctx, unused, handler(class)); err != nil {
			t.Fatal(err)
		}
	}
	testkit.EventuallyIn(t, time.Minute, "ImageFsInfo includes the unused image on each disk", func(ctx context.Context) (bool, error) {
		res, err := r.Images().ImageFsInfo(ctx, &cri.ImageFsInfoRequest{})
		if err != nil {
			return false, err
		}
		all := res.GetImageFilesystems()
		for i, name := range []string{"overlayfs", "native"} {
			if len(all) != len(disks) || all[i].GetFsId().GetMountpoint() != disks[name] {
				t.Fatalf("ImageFsInfo: got filesystems %v, want one for each disk of %v", all, disks)
			}
			if all[i].GetUsedBytes().GetValue() < big {
				return false, nil
			}
		}
		return true, nil
	})
	before := map[string]uint64{}
	for name, dir := range disks {
		before[name] = statfs(t, dir).available
	}
	// kubelet requires half of the default snapshotter's disk to be free.
	if err := r.k.Start(r.Ctx, cluster.KubeletOptions{Config: map[string]any{
		"imageMinimumGCAge": "1ms", "evictionHard": map[string]any{"imagefs.available": "50%"}, "evictionPressureTransitionPeriod": "1s",
	}}); err != nil {
		t.Fatal(err)
	}
	for name, dir := range disks {
		testkit.EventuallyIn(t, time.Minute, "space is free on the disk of "+name, func(context.Context) (bool, error) {
			return statfs(t, dir).available >= before[name]+big, nil
		})
	}
	wantDisks(func(used uint64) bool { return used < big })
	for i, p := range pods {
		now := r.waitPod(p, "still runs", running)
		if a, b := now.Status.ContainerStatuses[0].ContainerID, p.Status.ContainerStatuses[0].ContainerID; a != b {
			t.Errorf("pod of class %s: got container %s, want %s", title(classes[i]), a, b)
		}
	}
	r.waitHealthy()
}

// disk creates a filesystem of the given size for the test and returns its mountpoint.
func disk(t *testing.T, megabytes int64) string {
	t.Helper()
	dir, err := node.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	image, mountpoint := filepath.Join(dir, "img"), filepath.Join(dir, "fs")
	t.Cleanup(func() {
		if err := errors.Join(node.UnmountBelow(dir), os.RemoveAll(dir)); err != nil {
			t.Errorf("remove disk: %v", err)
		}
	})
	if err := errors.Join(os.Mkdir(mountpoint, 0o711), os.WriteFile(image, nil, 0o600), os.Truncate(image, megabytes<<20)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-m", "0", image}, {"mount", "-o", "loop", image, mountpoint}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	return mountpoint
}

type space struct{ capacity, available uint64 } // bytes

func statfs(t *testing.T, dir string) space {
	t.Helper()
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	return space{capacity: s.Blocks * uint64(s.Frsize), available: s.Bavail * uint64(s.Frsize)}
}
