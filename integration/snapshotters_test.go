package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// second is the handler of these tests that is not on the default snapshotter.
const second = "second"

var onNative = []node.Handler{{Name: second, Snapshotter: "native"}}

// TestSnapshottersSideBySide runs pods of one image on two snapshotters of one containerd, with kubelet's calls, in both orders and
// with its gate on and off; and counts what the second one asks of the registry. Stock fails this where layers are discarded,
// see [TestStockLosesSecondSnapshotter].
func TestSnapshottersSideBySide(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		for _, order := range [][]string{{"runc", second}, {second, "runc"}} {
			for _, gate := range []bool{false, true} {
				t.Run(fmt.Sprintf("discard=%t/%s-first/gate=%t", discard, order[0], gate), func(t *testing.T) {
					t.Parallel()
					r := newRig(t, node.Options{DiscardUnpackedLayers: discard, Handlers: onNative})
					opts := images.Options{}
					tag, digest := r.push("app:v1", opts, images.HostPlatform(), foreign)
					var id string
					for i, handler := range order {
						if i == 1 {
							r.collect()
							r.reg.Reset()
						}
						pod := r.pod(handler) // as kubelet's, but that its requests are counted apart
						if i == 1 {
							r.wantRequests("the sandbox of the second snapshotter", layers(discard, 1)...)
						}
						res, err := r.RunAsKubelet(r.ctx, node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: tag, Gate: gate})
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
							r.wantRequests("the pull for the second snapshotter", append(layers(discard, 2), "HEAD manifest")...)
						}
						if i == 1 && res.ImageID != id {
							t.Errorf("the image ID is %s on the second snapshotter and %s on the first", res.ImageID, id)
						}
						id = res.ImageID
						r.removePod(pod)
					}
					r.wantNames(id, []string{tag}, []string{digest})

					// Both stay runnable, and nothing is asked for it.
					r.collect()
					for _, handler := range order {
						r.wantRun(handler, tag, opts.Line(0))
					}
					r.offline("running what is ready")
					state := r.state()
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

// collect runs the garbage collector: containerd does so when it sees fit, and layers that are discarded are there until then.
func (r *rig) collect() {
	r.t.Helper()
	if err := r.GC(r.ctx); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) state() *node.State {
	r.t.Helper()
	s, err := r.State(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// TestCreateContainerMakesReady creates containers on the second snapshotter without pulling for it, as kubelet does where its
// look-up found the image.
func TestCreateContainerMakesReady(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		t.Run(fmt.Sprintf("discard=%t", discard), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, node.Options{DiscardUnpackedLayers: discard, Handlers: onNative})
			opts := images.Options{}
			tag, digest := r.push("app:v1", opts, images.HostPlatform(), foreign)
			id := r.pull(tag, "")
			pod := r.pod(second)
			r.collect()
			r.reg.Reset()

			if discard {
				r.reg.Down()
				_, err := r.CreateContainer(r.ctx, pod, node.ContainerOptions{Image: id, UserImage: tag})
				if err == nil || !strings.Contains(err.Error(), "ImageNotReady") || !strings.Contains(err.Error(), "discard_unpacked_layers = false") {
					t.Errorf("CreateContainer for which layers are missing says %v", err)
				}
				if err := r.reg.Up(); err != nil {
					t.Fatal(err)
				}
			}
			r.wantLine(pod, node.ContainerOptions{Image: id, UserImage: tag}, opts.Line(0))
			r.wantRequests("CreateContainer on the second snapshotter", layers(discard, 2)...)
			r.wantLine(pod, node.ContainerOptions{Image: digest}, opts.Line(0))
			r.offline("CreateContainer of what is ready")
			if img := r.status(tag, second); img.GetId() != id {
				t.Errorf("ImageStatus for the second snapshotter says %q after a container was created there", img.GetId())
			}
			r.wantNames(id, []string{tag}, []string{digest})
		})
	}
}

// TestImageVolumes mounts an image as a volume into containers of the default handler, of one on another snapshotter and of one for
// another platform. Where the volume's image is not ready for the handler it is made so.
func TestImageVolumes(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		t.Run(fmt.Sprintf("discard=%t", discard), func(t *testing.T) {
			r := newRig(t, node.Options{
				DiscardUnpackedLayers: discard,
				Handlers:              append([]node.Handler{{Name: "foreign", Platform: foreign}}, onNative...),
			})
			app, _ := r.push("app:v1", images.Options{Version: "app"}, images.HostPlatform(), foreign)
			volume, _ := r.push("volume:v1", images.Options{Version: "volume", SingleLayer: true}, images.HostPlatform(), foreign)
			id := r.pull(volume, "")
			for _, c := range []struct {
				handler, platform string
				requests          []string
			}{
				{"", images.HostPlatform(), nil},
				{second, images.HostPlatform(), layers(discard, 1)},
				{"foreign", foreign, []string{"GET manifest", "GET blob", "GET blob"}},
			} {
				r.pull(app, c.handler)
				pod := r.pod(c.handler)
				r.collect()
				r.reg.Reset()
				mount := &cri.Mount{
					ContainerPath: "/volume", Readonly: true,
					Image: &cri.ImageSpec{Image: id, UserSpecifiedImage: volume, RuntimeHandler: c.handler},
				}
				args := node.ContainerOptions{Image: app, Args: []string{"cat", "/volume/facts"}, Mounts: []*cri.Mount{mount}}
				for range 2 { // in a second container of the pod it is mounted already
					r.wantLine(pod, args, c.platform+",volume")
				}
				r.wantRequests("the volume of handler "+c.handler, c.requests...)
				if img := r.status(volume, handlerName(c.handler)); img == nil {
					t.Errorf("handler %q: the volume's image is not there after it was mounted", c.handler)
				}
				r.removePod(pod)
			}
		})
	}
}

// handlerName makes the default handler explicit, so that an image call is strict.
func handlerName(handler string) string {
	if handler == "" {
		return node.DefaultHandler
	}
	return handler
}
