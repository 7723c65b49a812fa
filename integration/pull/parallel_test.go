package pull

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestParallelWithAnnotations pulls an image for overlayfs while the registry holds its layers. The layers are unpacked
// in parallel whether or not snapshotters get the annotations for lazy fetching: a snapshot is prepared for each layer
// before the first one is there.
func TestParallelWithAnnotations(t *testing.T) {
	t.Parallel()
	for _, disabled := range []bool{true, false} {
		t.Run(fmt.Sprintf("disable_snapshot_annotations=%t", disabled), func(t *testing.T) {
			t.Parallel()
			r := testkit.NewRig(t, node.Options{
				Extra: fmt.Sprintf("[plugins.%q]\ndisable_snapshot_annotations = %t\n", testkit.ImagesSection, disabled),
			})
			before := warm(r, "")
			img := testkit.App(t, whiteout)
			config, err := img.ConfigName()
			if err != nil {
				t.Fatal(err)
			}
			tag, _ := r.PushImage("app:v1", img)
			var h heldLayers
			r.Reg.SetFault(h.rule("app", config.String()))
			pulled := make(chan error, 1)
			go func() {
				_, err := r.Pull(r.Ctx, tag, "")
				pulled <- err
			}()
			r.Eventually("4 layers are being unpacked", func() bool { return unpacking(r.MustState(), "overlayfs") == 4 })
			for range 4 {
				r.Eventually("a layer is requested", func() bool { return h.count() > 0 })
				h.release()
			}
			if err := <-pulled; err != nil {
				t.Fatal(err)
			}
			p := r.MustPod("")
			r.WantLine(p, node.ContainerOptions{Image: tag, Args: []string{"ls", "/dir"}}, "kept") // "gone" would be first
			r.MustRemovePod(p)
			if got := annotated(r.MustState(), "overlayfs", before); got == disabled {
				t.Errorf("disable_snapshot_annotations = %t: got snapshots with annotations: %t", disabled, got)
			}
		})
	}
}

// unpacking returns the number of snapshots into which layers are being unpacked.
func unpacking(s *node.State, snapshotter string) int {
	n := 0
	for key, info := range s.Snapshots {
		if strings.HasPrefix(key, node.Namespace+"/"+snapshotter+"/"+snapshots.UnpackKeyPrefix) && info.Kind == snapshots.KindActive {
			n++
		}
	}
	return n
}

// annotated reports whether the snapshots that are not in before name the image to fetch their layers from.
func annotated(s *node.State, snapshotter string, before *node.State) bool {
	for key, info := range s.Snapshots {
		_, old := before.Snapshots[key]
		if !old && strings.HasPrefix(key, node.Namespace+"/"+snapshotter+"/") && info.Labels["containerd.io/snapshot/cri.image-ref"] != "" {
			return true
		}
	}
	return false
}
