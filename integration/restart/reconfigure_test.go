package restart

import (
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestPlatformOfAHandlerChanges starts containerd with another platform for a handler: what was there for the old one is absent and
// freed, what the others have stays.
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
		t.Errorf("what was pulled for the old platform is there for the new one: %v", img)
	}
	if got := r.MustStatus(tag, "").GetId(); got != id {
		t.Errorf("the node's own image is %q, not %s", got, id)
	}
	r.Eventually("the old platform's is freed", func() bool {
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

// TestDiscardFlipped starts containerd with discard_unpacked_layers the other way: what is there stays and runs, and is had for another
// snapshotter from what is here where the layers were kept, and from the registry where they were not.
func TestDiscardFlipped(t *testing.T) {
	t.Parallel()
	for name, discard := range map[string]bool{"to true": false, "to false": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := testkit.NewRig(t, node.Options{DiscardUnpackedLayers: discard, Handlers: testkit.OnNative})
			opts := images.Options{}
			tag, _ := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
			id := r.MustPull(tag, "")
			for _, h := range []string{"", testkit.Second} {
				r.MustRemovePod(r.MustPod(h)) // has the sandbox image there
			}
			r.Collect()
			r.Reg.Reset()
			r.KillAndRestart(func(o *node.Options) { o.DiscardUnpackedLayers = !discard })
			if got := r.MustStatus(tag, "").GetId(); got != id {
				t.Errorf("the image is %q, not %s", got, id)
			}
			r.WantRun("", tag, opts.Line(0))
			r.WantNoRequests("what is there")
			r.WantRun(testkit.Second, tag, opts.Line(0))
			if asked := len(r.Reg.Requests()) > 0; asked != discard {
				t.Errorf("layers were discarded: %t; the registry was asked: %t\n%s", discard, asked, r.Reg.Dump())
			}
		})
	}
}
