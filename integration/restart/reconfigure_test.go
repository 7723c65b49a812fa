package restart

import (
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestPlatformOfAHandlerChanges checks that an image of a handler's old platform is freed after the platform changes,
// and that the images of other handlers stay.
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
	r.Eventually("the image of the old platform is freed", func() bool {
		s := r.MustState()
		_, record := s.Images[node.Namespace+"/"+theirs]
		_, config := s.Content[node.Namespace+"/"+theirs]
		return !record && !config
	})
	if err := r.Reg.Up(); err != nil {
		t.Fatal(err)
	}
	r.MustPull(tag, "foreign")
	r.WantRun("foreign", tag, testkit.Line(opts, another))
	r.WantRun("", tag, opts.Line(0))
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
