package restart

import (
	"maps"
	"testing"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestPlatformOfAHandlerChanges checks that an image of a handler's old platform is unused after the platform changes: the
// handler does not get it, it is listed as unused, and nothing of it is freed. Images of other handlers stay. When the old
// platform comes back, it is ready at once, without the registry. An operator can remove it.
func TestPlatformOfAHandlerChanges(t *testing.T) {
	t.Parallel()
	const another = "linux/ppc64le"
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}}})
	opts := images.Options{}
	tag, _ := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign, another)
	id := r.MustPull(tag, "")
	theirs := r.MustPull(tag, "foreign")
	r.Reg.Down()
	r.KillAndRestart(func(o *node.Options) { o.Handlers[0].Platform = another })
	if img := r.MustStatus(tag, "foreign"); img != nil {
		t.Errorf("ImageStatus returned the image of the old platform: %v", img)
	}
	if got := r.MustStatus(tag, "").GetId(); got != id {
		t.Errorf("ImageStatus for the default handler returned %q, want %s", got, id)
	}
	wantStates(r, tag, map[string]string{images.HostPlatform(): "ready", testkit.Foreign: "unused"})
	if err := r.Reg.Up(); err != nil {
		t.Fatal(err)
	}
	r.MustPull(tag, "foreign")
	r.WantRun("foreign", tag, testkit.Line(opts, another))
	r.WantRun("", tag, opts.Line(0))
	r.Collect()

	r.Reg.Down()
	r.Reg.Reset()
	r.KillAndRestart(func(o *node.Options) { o.Handlers[0].Platform = testkit.Foreign })
	if got := r.MustStatus(tag, "foreign").GetId(); got != theirs {
		t.Errorf("with the old platform again: ImageStatus returned %q, want %s", got, theirs)
	}
	r.WantNoRequests("the old platform")
	wantStates(r, tag, map[string]string{images.HostPlatform(): "ready", testkit.Foreign: "ready", another: "unused"})
	for _, k := range keysOf(r, tag) {
		if k.GetState() == "unused" {
			if out, code := r.Operator("rm", k.GetImageId()); code != 0 {
				t.Errorf("imagepin rm of an unused image: exit code %d\n%s", code, out)
			}
		}
	}
	wantStates(r, tag, map[string]string{images.HostPlatform(): "ready", testkit.Foreign: "ready"})
}

// keysOf returns the keys of a tag.
func keysOf(r *testkit.Rig, tag string) []*api.Key {
	r.T.Helper()
	resp, err := r.Control().Images(r.Ctx, &api.ImagesRequest{RefGlob: tag})
	if err != nil {
		r.T.Fatal(err)
	}
	return resp.GetKeys()
}

// wantStates checks the states of the keys of a tag, by platform.
func wantStates(r *testkit.Rig, tag string, want map[string]string) {
	r.T.Helper()
	got := make(map[string]string)
	for _, k := range keysOf(r, tag) {
		got[k.GetTarget().GetPlatform()] = k.GetState()
	}
	if !maps.Equal(got, want) {
		r.T.Errorf("got states %v, want %v", got, want)
	}
}

// TestDefaultSnapshotterOfOtherPlatforms changes the default snapshotter of a node with images of another platform, one of
// which a container runs. They stay in the old snapshotter, and are ready at once when it is the default again.
func TestDefaultSnapshotterOfOtherPlatforms(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}}, DiscardUnpackedLayers: true})
	opts := images.Options{}
	tag, _ := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
	r.MustPull(tag, "")
	theirs := r.MustPull(tag, "foreign")
	pod := r.MustPod("foreign")
	r.WantLine(pod, node.ContainerOptions{Image: tag}, testkit.Line(opts, testkit.Foreign))
	r.Collect()
	r.Reg.Down()
	r.Reg.Reset()
	r.KillAndRestart(func(o *node.Options) { o.Snapshotter = "native" })
	r.Collect()
	wantStates(r, tag, map[string]string{images.HostPlatform(): "unused", testkit.Foreign: "unused"})
	if img := r.MustStatus(tag, "foreign"); img != nil {
		t.Errorf("ImageStatus returned the image of the old snapshotter: %v", img)
	}
	r.KillAndRestart(func(o *node.Options) { o.Snapshotter = "overlayfs" })
	if got := r.MustStatus(tag, "foreign").GetId(); got != theirs {
		t.Errorf("with the old default again: ImageStatus returned %q, want %s", got, theirs)
	}
	r.WantLine(pod, node.ContainerOptions{Image: tag}, testkit.Line(opts, testkit.Foreign))
	r.WantNoRequests("both changes")
	wantStates(r, tag, map[string]string{images.HostPlatform(): "ready", testkit.Foreign: "ready"})
}

// TestDiscardFlipped changes discard_unpacked_layers. Images stay and run. Another snapshotter uses the layers on the
// node if they were kept, and the registry otherwise.
func TestDiscardFlipped(t *testing.T) {
	t.Parallel()
	for _, second := range testkit.SecondSnapshotters {
		for name, discard := range map[string]bool{"to true": false, "to false": true} {
			t.Run(second+"/"+name, func(t *testing.T) {
				t.Parallel()
				r := testkit.NewRig(t, testkit.WithSecond(second, node.Options{DiscardUnpackedLayers: discard}))
				opts := images.Options{}
				tag, _ := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
				id := r.MustPull(tag, "")
				for _, h := range []string{"", testkit.Second} {
					r.MustRemovePod(r.MustPod(h)) // pulls the sandbox image
				}
				r.Collect()
				r.Reg.Reset()
				r.KillAndRestart(func(o *node.Options) { o.DiscardUnpackedLayers = !discard })
				if got := r.MustStatus(tag, "").GetId(); got != id {
					t.Errorf("ImageStatus returned %q, want %s", got, id)
				}
				r.WantRun("", tag, opts.Line(0))
				r.WantNoRequests("running a ready image")
				r.WantRun(testkit.Second, tag, opts.Line(0))
				if requested := len(r.Reg.Requests()) > 0; requested != discard {
					t.Errorf("layers discarded: %t, registry requests: %t\n%s", discard, requested, r.Reg.Dump())
				}
			})
		}
	}
}
