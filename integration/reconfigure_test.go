package integration

import (
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// TestPlatformOfAHandlerChanges starts containerd with another platform for a handler: what was there for the old one is absent and
// freed, what the others have stays.
func TestPlatformOfAHandlerChanges(t *testing.T) {
	t.Parallel()
	const another = "linux/ppc64le"
	r := newRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: foreign}}})
	opts := images.Options{}
	tag, _ := r.push("app:v1", opts, images.HostPlatform(), foreign, another)
	id := r.pull(tag, "")
	theirs := r.pull(tag, "foreign")
	r.reg.Down()
	r.crash(func(o *node.Options) { o.Handlers[0].Platform = another })
	if img := r.status(tag, "foreign"); img != nil {
		t.Errorf("what was pulled for the old platform is there for the new one: %v", img)
	}
	if got := r.status(tag, "").GetId(); got != id {
		t.Errorf("the node's own image is %q, not %s", got, id)
	}
	r.eventually("the old platform's is freed", func() bool {
		s := r.state()
		_, record := s.Images[node.Namespace+"/"+theirs]
		_, config := s.Content[node.Namespace+"/"+theirs]
		return !record && !config
	})
	if err := r.reg.Up(); err != nil {
		t.Fatal(err)
	}
	r.pull(tag, "foreign")
	r.wantRun("foreign", tag, line(opts, another))
	r.wantRun("", tag, opts.Line(0))
}

// TestDiscardFlipped starts containerd with discard_unpacked_layers the other way: what is there stays and runs, and is had for another
// snapshotter from what is here where the layers were kept, and from the registry where they were not.
func TestDiscardFlipped(t *testing.T) {
	t.Parallel()
	for name, discard := range map[string]bool{"to true": false, "to false": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, node.Options{DiscardUnpackedLayers: discard, Handlers: onNative})
			opts := images.Options{}
			tag, _ := r.push("app:v1", opts, images.HostPlatform(), foreign)
			id := r.pull(tag, "")
			for _, h := range []string{"", second} {
				r.removePod(r.pod(h)) // has the sandbox image there
			}
			r.collect()
			r.reg.Reset()
			r.crash(func(o *node.Options) { o.DiscardUnpackedLayers = !discard })
			if got := r.status(tag, "").GetId(); got != id {
				t.Errorf("the image is %q, not %s", got, id)
			}
			r.wantRun("", tag, opts.Line(0))
			r.offline("what is there")
			r.wantRun(second, tag, opts.Line(0))
			if asked := len(r.reg.Requests()) > 0; asked != discard {
				t.Errorf("layers were discarded: %t; the registry was asked: %t\n%s", discard, asked, r.reg.Dump())
			}
		})
	}
}
