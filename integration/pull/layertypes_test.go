package pull

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestOtherLayerTypes pulls images whose layers are compressed in another way than their media type says, and an image with a
// layer of 0 bytes. They stay ready over a restart, and their removal leaves nothing.
func TestOtherLayerTypes(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Handlers: testkit.OnNative})
	layer := goodLayer(t)
	var zstded bytes.Buffer
	w, err := zstd.NewWriter(&zstded)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(layer.plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	const plain = "application/vnd.oci.image.layer.v1.tar"
	all := map[string]brokenImage{
		"gzip-untyped": {layer: layer.packed, mediaType: plain},
		"zstd-untyped": {layer: zstded.Bytes(), mediaType: plain},
		"zstd-as-gzip": {layer: zstded.Bytes()},
		"plain":        {layer: layer.plain, mediaType: plain},
		"empty":        {diffIDs: []string{digestOf(nil)}},
		"empty-plain":  {diffIDs: []string{digestOf(nil)}, mediaType: plain},
	}
	before := r.MustState()
	names := slices.Sorted(maps.Keys(all))
	handlers := []string{"", testkit.Second}
	for _, name := range names {
		all[name].push(t, r.Reg, name)
		for _, h := range handlers {
			r.MustPull(r.Reg.Ref(name+":v1"), h)
		}
	}
	r.KillAndRestart(nil)
	for _, name := range names {
		for _, h := range handlers {
			if r.MustStatus(r.Reg.Ref(name+":v1"), h) == nil {
				t.Errorf("%s for handler %q is gone after a restart", name, h)
			}
		}
	}
	if out, ok := r.Command("check", "--deep"); !ok {
		t.Errorf("check: got findings:\n%s", out)
	}
	for _, name := range names {
		r.MustRemove(r.Reg.Ref(name+":v1"), "")
	}
	testkit.NoLeaks(t, r.Node, before)
}

// TestOtherMediaTypes pulls images with media types that are not those of an image. The error names the media type, once, and
// does not send to a repair of the node.
func TestOtherMediaTypes(t *testing.T) {
	t.Parallel()
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{NoPods: true, Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	layer := goodLayer(t).packed
	for name, c := range map[string]struct {
		image brokenImage
		words string
	}{
		"config":        {brokenImage{layer: layer, configType: "application/octet-stream"}, `has the media type "application/octet-stream"`},
		"layer":         {brokenImage{layer: layer, mediaType: "application/octet-stream"}, `has the media type "application/octet-stream"`},
		"layer-untyped": {brokenImage{layer: layer, mediaType: noType}, `has the media type ""`},
	} {
		for _, handler := range []string{"", "native"} {
			c.image.push(t, reg, name)
			err := checkFailedPull(t, n, reg.Ref(name+":v1"), handler, testkit.Corrupt)
			if err != nil && (strings.Count(err.Error(), c.words) != 1 || strings.Contains(err.Error(), "--repair")) {
				t.Errorf("%s for handler %q: %v", name, handler, err)
			}
		}
	}
}

// TestMissingLayers checks that the error of an image whose layers are all missing in the registry has one line for what
// happened and one for what to do, and names the cause once.
func TestMissingLayers(t *testing.T) {
	t.Parallel()
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{NoPods: true, Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	img := testkit.App(t, images.Options{Version: "missing layers"})
	for _, handler := range []string{"", "native"} {
		testkit.Push(t, reg, "missing:v1", img)
		layers, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		if len(layers) < 2 {
			t.Fatalf("the image has %d layers", len(layers))
		}
		for _, l := range layers {
			d, err := l.Digest()
			if err != nil {
				t.Fatal(err)
			}
			reg.DeleteBlob("missing", d)
		}
		err = checkFailedPull(t, n, reg.Ref("missing:v1"), handler, testkit.ImageIncomplete)
		if err == nil {
			continue
		}
		if strings.Count(err.Error(), "\n") != 1 || strings.Count(err.Error(), "could not fetch content descriptor") != 1 {
			t.Errorf("handler %q: the error is %q", handler, err)
		}
	}
}
