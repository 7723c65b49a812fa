package kubelet

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	core "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// layers are how many layers are unpacked, in all snapshotters together.
func (r *kubeletRig) layers() int {
	n := 0
	for key := range testkit.State(r.T, r.Node).Snapshots {
		if strings.Contains(key, "/sha256:") {
			n++
		}
	}
	return n
}

// TestImageGC puts a node under pressure of its image filesystem, so that kubelet removes every image that it believes unused:
// what containers and image volumes are made of stays, in their snapshotter, and everything else goes from all of them.
func TestImageGC(t *testing.T) {
	t.Parallel()
	for _, gate := range []bool{false, true} {
		t.Run(fmt.Sprintf("gate=%t", gate), func(t *testing.T) {
			t.Parallel()
			testImageGC(t, gate)
		})
	}
}

func testImageGC(t *testing.T, gate bool) {
	r := newRig(t, fmt.Sprintf("gc-%t", gate), node.Options{}, cluster.KubeletOptions{Gate: gate})
	used, usedVolume := images.Options{Version: "used"}, images.Options{Version: "volume", SingleLayer: true}
	ref, _ := r.push("app/used:v1", used)
	volume, _ := r.push("app/volume:v1", usedVolume)
	unused, _ := r.push("app/unused:v1", images.Options{Version: "unused"})
	var pods []*core.Pod
	for _, class := range classes {
		p := r.pod("used-"+title(class), class, ref, core.PullIfNotPresent)
		// Under pressure kubelet evicts others first, and all of them in the end.
		p.Spec.PriorityClassName = "system-node-critical"
		p.Spec.Volumes = []core.Volume{{Name: "v", VolumeSource: core.VolumeSource{Image: &core.ImageVolumeSource{Reference: volume}}}}
		p.Spec.Containers[0].VolumeMounts = []core.VolumeMount{{Name: "v", MountPath: "/volume"}}
		r.create(p)
		pods = append(pods, r.wantLine(p, line(class, used, 0)))
		if _, err := r.Pull(r.Ctx, unused, handler(class)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.k.Stop(); err != nil {
		t.Fatal(err)
	}
	before := r.layers()
	if err := r.k.Start(r.Ctx, cluster.KubeletOptions{Gate: gate, Config: map[string]any{
		"imageMinimumGCAge": "1ms", "evictionHard": map[string]any{"imagefs.available": "99%"},
	}}); err != nil {
		t.Fatal(err)
	}
	// Once, before it sees that this does not help.
	testkit.EventuallyIn(t, time.Minute, "the unused image is removed for every class", func(ctx context.Context) (bool, error) {
		for _, class := range classes {
			if img, err := r.ImageStatus(ctx, unused, handler(class)); err != nil || img != nil {
				return false, err
			}
		}
		return true, nil
	})
	for i, class := range classes {
		for _, name := range []string{ref, volume} {
			if img, err := r.ImageStatus(r.Ctx, name, handler(class)); err != nil || img == nil {
				t.Errorf("class %s: %s is gone, although a pod runs of it: %v", title(class), name, err)
			}
		}
		now := r.waitPod(pods[i], "still runs", running)
		// It can be started again, with what is there.
		r.stop(now)
		r.wantLog(r.waitRestart(now), 1, line(class, used, 0))
	}
	if err := r.GC(r.Ctx); err != nil {
		t.Fatal(err)
	}
	// Each class had one layer more for the unused image: the others are shared.
	if after := r.layers(); before-after != len(classes) {
		t.Errorf("%d layers are unpacked before kubelet's image GC, %d after it", before, after)
	}
	removed := 0
	for _, c := range r.k.Proxy.Calls("RemoveImage") {
		removed++
		if spec := c.Request.(*cri.RemoveImageRequest).GetImage(); !byID(spec.GetImage()) || !proto.Equal(spec, &cri.ImageSpec{Image: spec.GetImage()}) {
			t.Errorf("kubelet's image GC removes %v, not an ID and nothing else", spec)
		}
	}
	if removed == 0 {
		t.Error("kubelet removed no image")
	}
}
