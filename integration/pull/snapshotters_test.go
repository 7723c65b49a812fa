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

// TestSnapshottersSideBySide runs pods of one image on two snapshotters, with kubelet's calls, in both orders and with
// its feature gate on and off. It counts the requests for the second snapshotter. With stock, this fails if layers are
// discarded, see TestStockLosesSecondSnapshotter.
func TestSnapshottersSideBySide(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		for _, order := range [][]string{{"runc", testkit.Second}, {testkit.Second, "runc"}} {
			for _, c := range []struct {
				second string
				gate   bool
			}{{"native", false}, {"native", true}, {node.EROFS, false}} {
				t.Run(fmt.Sprintf("%s/discard=%t/%s-first/gate=%t", c.second, discard, order[0], c.gate), func(t *testing.T) {
					t.Parallel()
					r := testkit.NewRig(t, testkit.WithSecond(c.second, node.Options{DiscardUnpackedLayers: discard}))
					opts := images.Options{}
					tag, digest := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
					var id string
					var pods []*node.Pod
					for i, handler := range order {
						if i == 1 {
							r.Collect()
							r.Reg.Reset()
						}
						pods = append(pods, r.MustPod(handler)) // its requests are counted separately
						if i == 1 {
							r.WantRequests("the sandbox of the second snapshotter", layers(discard, 1)...)
						}
						res, err := r.RunAsKubelet(r.Ctx, node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: tag, Gate: c.gate})
						if err != nil {
							t.Fatalf("handler %s: %v", handler, err)
						}
						if want := opts.Line(0); res.Line != want {
							t.Errorf("handler %s: got %q, want %q", handler, res.Line, want)
						}
						if !res.Pulled {
							t.Errorf("handler %s: ImageStatus reported the image before it was pulled for this snapshotter", handler)
						}
						if i == 1 {
							r.WantRequests("the pull for the second snapshotter", append(layers(discard, 2), "HEAD manifest")...)
						}
						if i == 1 && res.ImageID != id {
							t.Errorf("image ID on the second snapshotter: got %s, want %s", res.ImageID, id)
						}
						id = res.ImageID
					}
					r.WantNames(id, []string{tag}, []string{digest})

					// Both stay runnable without requests.
					r.Collect()
					for _, pod := range pods {
						r.WantRunIn(pod, tag, opts.Line(0))
					}
					r.WantNoRequests("running ready images")
					state := r.MustState()
					if kept := layerBlobs(state); discard != (len(kept) == 0) {
						t.Errorf("discard_unpacked_layers = %t: got layers %q in the content store", discard, kept)
					}
				})
			}
		}
	}
}

// layers returns the requests for n layers if they were discarded.
func layers(discarded bool, n int) []string {
	if !discarded {
		return nil
	}
	return slices.Repeat([]string{"GET blob"}, n)
}

// layerBlobs returns the blobs that are neither a manifest nor a config, by their labels.
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

// TestCreateContainerMakesReady creates containers on the second snapshotter without a pull for it, as kubelet does if
// its lookup found the image.
func TestCreateContainerMakesReady(t *testing.T) {
	t.Parallel()
	for _, second := range testkit.SecondSnapshotters {
		for _, discard := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/discard=%t", second, discard), func(t *testing.T) {
				t.Parallel()
				r := testkit.NewRig(t, testkit.WithSecond(second, node.Options{DiscardUnpackedLayers: discard}))
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
						t.Errorf("CreateContainer without the layers: got error %v", err)
					}
					if err := r.Reg.Up(); err != nil {
						t.Fatal(err)
					}
				}
				r.WantLine(pod, node.ContainerOptions{Image: id, UserImage: tag}, opts.Line(0))
				r.WantRequests("CreateContainer on the second snapshotter", layers(discard, 2)...)
				r.WantLine(pod, node.ContainerOptions{Image: digest}, opts.Line(0))
				r.WantNoRequests("CreateContainer of a ready image")
				if img := r.MustStatus(tag, testkit.Second); img.GetId() != id {
					t.Errorf("ImageStatus for the second snapshotter after CreateContainer: got %q, want %s", img.GetId(), id)
				}
				r.WantNames(id, []string{tag}, []string{digest})
			})
		}
	}
}

// TestImageVolumes mounts an image as a volume into containers of the default handler, of a handler with another
// snapshotter, and of one with another platform. The image is made ready for the handler if necessary.
func TestImageVolumes(t *testing.T) {
	t.Parallel()
	for _, second := range testkit.SecondSnapshotters {
		for _, discard := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/discard=%t", second, discard), func(t *testing.T) {
				r := testkit.NewRig(t, testkit.WithSecond(second, node.Options{
					DiscardUnpackedLayers: discard, Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}},
				}))
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
					for range 2 { // the second container finds it mounted
						r.WantLine(pod, args, c.platform+",volume")
					}
					r.WantRequests("the volume of handler "+c.handler, c.requests...)
					if img := r.MustStatus(volume, testkit.HandlerName(c.handler)); img == nil {
						t.Errorf("handler %q: the volume's image is absent after it was mounted", c.handler)
					}
					r.MustRemovePod(pod)
				}
			})
		}
	}
}
