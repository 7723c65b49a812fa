package pull

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestSnapshottersSideBySide runs pods of one image on two snapshotters of one containerd, with kubelet's calls, in both orders and
// with its gate on and off; and counts what the second one asks of the registry. Stock fails this where layers are discarded,
// see [TestStockLosesSecondSnapshotter].
func TestSnapshottersSideBySide(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		for _, order := range [][]string{{"runc", testkit.Second}, {testkit.Second, "runc"}} {
			for _, gate := range []bool{false, true} {
				t.Run(fmt.Sprintf("discard=%t/%s-first/gate=%t", discard, order[0], gate), func(t *testing.T) {
					t.Parallel()
					r := testkit.NewRig(t, node.Options{DiscardUnpackedLayers: discard, Handlers: testkit.OnNative})
					opts := images.Options{}
					tag, digest := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
					var id string
					for i, handler := range order {
						if i == 1 {
							r.Collect()
							r.Reg.Reset()
						}
						pod := r.MustPod(handler) // as kubelet's, but that its requests are counted apart
						if i == 1 {
							r.WantRequests("the sandbox of the second snapshotter", layers(discard, 1)...)
						}
						res, err := r.RunAsKubelet(r.Ctx, node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: tag, Gate: gate})
						if err != nil {
							t.Fatalf("handler %s: %v", handler, err)
						}
						if want := opts.Line(0); res.Line != want {
							t.Errorf("handler %s printed %q, not %q", handler, res.Line, want)
						}
						if !res.Pulled {
							t.Errorf("handler %s: ImageStatus says that the image is there before it was pulled for this snapshotter", handler)
						}
						if i == 1 {
							r.WantRequests("the pull for the second snapshotter", append(layers(discard, 2), "HEAD manifest")...)
						}
						if i == 1 && res.ImageID != id {
							t.Errorf("the image ID is %s on the second snapshotter and %s on the first", res.ImageID, id)
						}
						id = res.ImageID
						r.MustRemovePod(pod)
					}
					r.WantNames(id, []string{tag}, []string{digest})

					// Both stay runnable, and nothing is asked for it.
					r.Collect()
					for _, handler := range order {
						r.WantRun(handler, tag, opts.Line(0))
					}
					r.WantNoRequests("running what is ready")
					state := r.MustState()
					if kept := layerBlobs(state); discard != (len(kept) == 0) {
						t.Errorf("with discard_unpacked_layers = %t the content store has layers %q", discard, kept)
					}
				})
			}
		}
	}
}

// layers are the requests for so many layers that are not there any more, if they were discarded.
func layers(discarded bool, n int) []string {
	if !discarded {
		return nil
	}
	return slices.Repeat([]string{"GET blob"}, n)
}

// layerBlobs are the blobs that are neither a manifest nor a config: those are small and text.
func layerBlobs(s *node.State) []string {
	var found []string
	for key, info := range s.Content {
		config, manifest := false, false
		for label := range info.Labels {
			config = config || strings.HasPrefix(label, "containerd.io/gc.ref.snapshot.")
			manifest = manifest || strings.HasPrefix(label, "containerd.io/gc.ref.content.")
		}
		if !config && !manifest {
			found = append(found, key)
		}
	}
	return found
}

// TestCreateContainerMakesReady creates containers on the second snapshotter without pulling for it, as kubelet does where its
// look-up found the image.
func TestCreateContainerMakesReady(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		t.Run(fmt.Sprintf("discard=%t", discard), func(t *testing.T) {
			t.Parallel()
			r := testkit.NewRig(t, node.Options{DiscardUnpackedLayers: discard, Handlers: testkit.OnNative})
			opts := images.Options{}
			tag, digest := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
			id := r.MustPull(tag, "")
			pod := r.MustPod(testkit.Second)
			r.Collect()
			r.Reg.Reset()

			if discard {
				r.Reg.Down()
				_, err := r.CreateContainer(r.Ctx, pod, node.ContainerOptions{Image: id, UserImage: tag})
				if err == nil || !strings.Contains(err.Error(), "ImageNotReady") || !strings.Contains(err.Error(), "discard_unpacked_layers = false") {
					t.Errorf("CreateContainer for which layers are missing says %v", err)
				}
				if err := r.Reg.Up(); err != nil {
					t.Fatal(err)
				}
			}
			r.WantLine(pod, node.ContainerOptions{Image: id, UserImage: tag}, opts.Line(0))
			r.WantRequests("CreateContainer on the second snapshotter", layers(discard, 2)...)
			r.WantLine(pod, node.ContainerOptions{Image: digest}, opts.Line(0))
			r.WantNoRequests("CreateContainer of what is ready")
			if img := r.MustStatus(tag, testkit.Second); img.GetId() != id {
				t.Errorf("ImageStatus for the second snapshotter says %q after a container was created there", img.GetId())
			}
			r.WantNames(id, []string{tag}, []string{digest})
		})
	}
}

// TestImageVolumes mounts an image as a volume into containers of the default handler, of one on another snapshotter and of one for
// another platform. Where the volume's image is not ready for the handler it is made so.
func TestImageVolumes(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		t.Run(fmt.Sprintf("discard=%t", discard), func(t *testing.T) {
			r := testkit.NewRig(t, node.Options{
				DiscardUnpackedLayers: discard,
				Handlers:              append([]node.Handler{{Name: "foreign", Platform: testkit.Foreign}}, testkit.OnNative...),
			})
			app, _ := r.Push("app:v1", images.Options{Version: "app"}, images.HostPlatform(), testkit.Foreign)
			volume, _ := r.Push("volume:v1", images.Options{Version: "volume", SingleLayer: true}, images.HostPlatform(), testkit.Foreign)
			id := r.MustPull(volume, "")
			for _, c := range []struct {
				handler, platform string
				requests          []string
			}{
				{"", images.HostPlatform(), nil},
				{testkit.Second, images.HostPlatform(), layers(discard, 1)},
				{"foreign", testkit.Foreign, []string{"GET manifest", "GET blob", "GET blob"}},
			} {
				r.MustPull(app, c.handler)
				pod := r.MustPod(c.handler)
				r.Collect()
				r.Reg.Reset()
				mount := &cri.Mount{
					ContainerPath: "/volume", Readonly: true,
					Image: &cri.ImageSpec{Image: id, UserSpecifiedImage: volume, RuntimeHandler: c.handler},
				}
				args := node.ContainerOptions{Image: app, Args: []string{"cat", "/volume/facts"}, Mounts: []*cri.Mount{mount}}
				for range 2 { // in a second container of the pod it is mounted already
					r.WantLine(pod, args, c.platform+",volume")
				}
				r.WantRequests("the volume of handler "+c.handler, c.requests...)
				if img := r.MustStatus(volume, testkit.HandlerName(c.handler)); img == nil {
					t.Errorf("handler %q: the volume's image is not there after it was mounted", c.handler)
				}
				r.MustRemovePod(pod)
			}
		})
	}
}
