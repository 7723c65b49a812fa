package lazy

import (
	"fmt"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestSideBySide runs pods of one image on overlayfs and on the lazy snapshotter, in both orders, with layers kept and
// discarded. A removal for one handler removes only its snapshots. Stock fails most of these cases.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		for _, order := range [][]string{{eagerHandler, lazyHandler}, {lazyHandler, eagerHandler}} {
			t.Run(fmt.Sprintf("discard=%t/%s-first", discard, order[0]), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, node.Options{DiscardUnpackedLayers: discard})
				opts := options("v1")
				ref, layers := r.push("app:v1", opts), r.layers(opts)
				var pods []*node.Pod
				for i, handler := range order {
					r.gc()
					r.Reg.Reset()
					res := r.run(handler, ref, opts.Line(0))
					pods = append(pods, res.Pod)
					if handler != lazyHandler {
						continue
					}
					r.wantLazy(layers)
					if i == 0 {
						r.wantBlobs("after the lazy pod", layers, false)
					}
				}
				r.gc()
				r.wantBlobs("after both pods", layers, !discard)

				// Remove the image for one handler: only the snapshots of this handler are removed.
				images, err := r.ListImages(r.Ctx)
				if err != nil {
					t.Fatal(err)
				}
				for i, handler := range order {
					r.remove(pods[i])
					if err := r.RemoveImage(r.Ctx, ref, handler); err != nil {
						t.Fatal(err)
					}
					r.gc()
					// The one layer of the sandbox image remains.
					if left := r.layersIn(snapshotterOf(handler)); len(left) > 1 {
						t.Errorf("the removal on %s left snapshots %q", snapshotterOf(handler), left)
					}
					if i == 0 {
						r.remove(r.run(order[1], ref, opts.Line(0)).Pod)
					}
				}
				r.wantBlobs("after both removals", layers, false)
				now, err := r.ListImages(r.Ctx)
				if err != nil {
					t.Fatal(err)
				}
				if len(now) != len(images)-1 {
					t.Errorf("got %d images after the removal, want one less than %d", len(now), len(images))
				}
			})
		}
	}
}

func snapshotterOf(handler string) string {
	if handler == lazyHandler {
		return snapshotter
	}
	return "overlayfs"
}

// TestWithoutExport runs pods on a lazy snapshotter that containerd's configuration does not declare as such. Like every
// snapshotter, it gets the annotations with disable_snapshot_annotations = false, and fetches lazily, one layer after the
// other: a layer of a parallel unpack would have no parent.
func TestWithoutExport(t *testing.T) {
	t.Parallel()
	annotations := fmt.Sprintf("[plugins.%q]\ndisable_snapshot_annotations = false\n", testkit.ImagesSection)
	r := newRigWith(t, node.Options{DiscardUnpackedLayers: true, Extra: annotations}, (*Snapshotter).SilentConfig)
	opts := options("v1")
	ref := r.push("app:v1", opts)
	r.run(lazyHandler, ref, opts.Line(0))
	r.wantLazy(r.layers(opts))
	r.run(eagerHandler, ref, opts.Line(0))
}

// TestSecondPlatform runs the image for another platform on the lazy snapshotter, and that for this machine on both.
func TestSecondPlatform(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{
		DiscardUnpackedLayers: true,
		Handlers:              []node.Handler{{Name: "foreign", Snapshotter: snapshotter, Platform: foreign}},
	})
	opts := options("v1")
	ref := r.push("app:v1", opts)
	r.run(eagerHandler, ref, opts.Line(0))
	r.Reg.Reset()
	other := opts
	other.Platform = foreign
	r.run("foreign", ref, other.Line(0))
	r.wantLazy(r.layers(other))
	r.run(lazyHandler, ref, opts.Line(0))
}

// TestRestarts stops and kills containerd and the snapshotter. Running containers survive a restart of containerd. They
// lose their files without the snapshotter, but new pods run after its restart.
func TestRestarts(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		t.Run(fmt.Sprintf("discard=%t", discard), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, node.Options{DiscardUnpackedLayers: discard})
			opts := options("v1")
			ref, layers := r.push("app:v1", opts), r.layers(opts)
			running := []*node.KubeletResult{r.run(lazyHandler, ref, opts.Line(0)), r.run(eagerHandler, ref, opts.Line(0))}
			id := running[0].ImageID

			for _, end := range []func() error{r.Stop, r.Kill9} {
				if err := end(); err != nil {
					t.Fatal(err)
				}
				if err := r.Restart(r.Ctx, nil); err != nil {
					t.Fatal(err)
				}
				for _, c := range running {
					lines, err := c.Container.Output(r.Ctx, 1)
					if err != nil || lines[0] != opts.Line(0) {
						t.Errorf("container from before the restart: got output %q, %v", lines, err)
					}
				}
				r.wantHere(ref, id)
				r.Reg.Reset()
				r.run(lazyHandler, ref, opts.Line(0))
				r.wantNoWholeLayer(layers)
			}
			if err := r.RemovePods(r.Ctx); err != nil {
				t.Fatal(err)
			}

			// Restart both in the order of their units: the snapshotter stops after containerd and starts before it.
			if err := r.Stop(); err != nil {
				t.Fatal(err)
			}
			if err := r.sn.Stop(); err != nil {
				t.Fatal(err)
			}
			r.startSnapshotter()
			if err := r.Restart(r.Ctx, nil); err != nil {
				t.Fatal(err)
			}
			r.wantHere(ref, id)
			r.runBoth(ref, opts.Line(0))

			// Kill only the snapshotter: eager pods still work, and lazy pods work again after its restart.
			if err := r.sn.Kill9(); err != nil {
				t.Fatal(err)
			}
			r.run(eagerHandler, ref, opts.Line(0))
			if _, err := r.RunPod(r.Ctx, node.PodOptions{Handler: lazyHandler}); err == nil {
				t.Error("a lazy pod starts although its snapshotter is down")
			}
			r.startSnapshotter()
			r.awaitSnapshotter()
			r.runBoth(ref, opts.Line(0))

			// Kill both, as in a power failure.
			if err := r.Kill9(); err != nil {
				t.Fatal(err)
			}
			if err := r.sn.Kill9(); err != nil {
				t.Fatal(err)
			}
			r.startSnapshotter()
			if err := r.Restart(r.Ctx, nil); err != nil {
				t.Fatal(err)
			}
			r.wantHere(ref, id)
			r.Reg.Reset()
			r.runBoth(ref, opts.Line(0))
			r.wantNoWholeLayer(layers)
			if err := r.RemovePods(r.Ctx); err != nil {
				t.Error(err)
			}
			r.check()
		})
	}
}

func (r *lazyRig) runBoth(ref, line string) {
	r.T.Helper()
	r.run(lazyHandler, ref, line)
	r.run(eagerHandler, ref, line)
}

// wantHere fails the test unless the image is present for both handlers with an ID.
func (r *lazyRig) wantHere(ref, id string) {
	r.T.Helper()
	for _, handler := range []string{eagerHandler, lazyHandler} {
		img, err := r.ImageStatus(r.Ctx, ref, handler)
		if err != nil {
			r.T.Fatal(err)
		}
		if img.GetId() != id {
			r.T.Errorf("image of handler %s after a restart: got %q, want %q", handler, img.GetId(), id)
		}
	}
}
