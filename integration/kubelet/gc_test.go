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

// layers returns the number of unpacked layers in all snapshotters.
func (r *kubeletRig) layers() int {
	n := 0
	for key := range testkit.State(r.T, r.Node).Snapshots {
		if strings.Contains(key, "/sha256:") {
			n++
		}
	}
	return n
}

// TestImageGC puts the image filesystem of a node under pressure, so that kubelet removes every image that it considers
// unused. Images of containers and image volumes stay in their snapshotter, and so does an image that an operator has pinned with the label
// of containerd's CRI. All others are removed from every snapshotter.
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
	kept, _ := r.push("app/kept:v1", images.Options{Version: "kept"})
	if _, err := r.Pull(r.Ctx, kept, ""); err != nil {
		t.Fatal(err)
	}
	testkit.LabelImage(t, r.Node, kept, testkit.PinnedLabel, "pinned")
	var pods []*core.Pod
	for _, class := range classes {
		p := r.pod("used-"+title(class), class, ref, core.PullIfNotPresent)
		// Under pressure kubelet evicts these pods last.
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
	// kubelet removes images before it finds that this does not free enough space.
	testkit.EventuallyIn(t, time.Minute, "the unused image is removed for every class", func(ctx context.Context) (bool, error) {
		for _, class := range classes {
			if img, err := r.ImageStatus(ctx, unused, handler(class)); err != nil || img != nil {
				return false, err
			}
		}
		return true, nil
	})
	if img, err := r.ImageStatus(r.Ctx, kept, ""); err != nil || !img.GetPinned() {
		t.Errorf("got image %v, %v of %s, want a pinned one", img, err, kept)
	}
	for i, class := range classes {
		for _, name := range []string{ref, volume} {
			if img, err := r.ImageStatus(r.Ctx, name, handler(class)); err != nil || img == nil {
				t.Errorf("class %s: no image %s, although a pod uses it: %v", title(class), name, err)
			}
		}
		now := r.waitPod(pods[i], "still runs", running)
		// The container can restart without a pull.
		r.stop(now)
		r.wantLog(r.waitRestart(now), 1, line(class, used, 0))
	}
	if err := r.GC(r.Ctx); err != nil {
		t.Fatal(err)
	}
	// The unused image has one layer of its own for each class, and shares the others.
	if after := r.layers(); before-after != len(classes) {
		t.Errorf("got %d unpacked layers before image garbage collection and %d after it, want a difference of %d", before, after, len(classes))
	}
	removed := 0
	for _, c := range r.k.Proxy.Calls("RemoveImage") {
		removed++
		if spec := c.Request.(*cri.RemoveImageRequest).GetImage(); !byID(spec.GetImage()) || !proto.Equal(spec, &cri.ImageSpec{Image: spec.GetImage()}) {
			t.Errorf("RemoveImage of image garbage collection: got %v, want only an image ID", spec)
		}
	}
	if removed == 0 {
		t.Error("kubelet removed no image")
	}
}
