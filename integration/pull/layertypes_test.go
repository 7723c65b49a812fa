package pull

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc/codes"

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
	image := func(b brokenImage) func(repo string) {
		return func(repo string) { b.push(t, reg, repo) }
	}
	manifest := func(mediaType string, body []byte) func(repo string) {
		return func(repo string) { reg.PushRaw(repo+":v1", images.Raw{MediaType: mediaType, Body: body}) }
	}
	const schema1 = `{"schemaVersion":1,"name":"library/app","tag":"v1","fsLayers":[],"history":[]}`
	notSupported := testkit.Failure{Name: "CannotPullImageManifest", Code: codes.Unimplemented}
	tooLarge := testkit.Failure{Name: "CannotPullImageManifest", Code: codes.FailedPrecondition}
	for name, c := range map[string]struct {
		push  func(repo string)
		want  testkit.Failure
		words []string // each is in the error once
	}{
		"config":        {image(brokenImage{layer: layer, configType: "application/octet-stream"}), testkit.Corrupt, []string{`has the media type "application/octet-stream"`}},
		"layer":         {image(brokenImage{layer: layer, mediaType: "application/octet-stream"}), testkit.Corrupt, []string{`has the media type "application/octet-stream"`}},
		"layer-untyped": {image(brokenImage{layer: layer, mediaType: noType}), testkit.Corrupt, []string{`has the media type ""`}},
		"schema1-signed": {manifest("application/vnd.docker.distribution.manifest.v1+prettyjws", []byte(schema1)), notSupported,
			[]string{"Docker's schema 1", `"application/vnd.docker.distribution.manifest.v1+prettyjws" is `, " supported since containerd "}},
		"schema1": {manifest("application/vnd.docker.distribution.manifest.v1+json", []byte(schema1)), notSupported,
			[]string{"Docker's schema 1", `"application/vnd.docker.distribution.manifest.v1+json" is `, " supported since containerd "}},
		"too-large": {manifest("application/vnd.oci.image.manifest.v1+json", bytes.Repeat([]byte(" "), 5<<20)), tooLarge,
			[]string{"larger than 4393216 bytes", "rejecting 5242880 byte manifest", "The registry has the tag"}},
	} {
		for _, handler := range []string{"", "native"} {
			c.push(name)
			err := checkFailedPull(t, n, reg.Ref(name+":v1"), handler, c.want)
			if err == nil {
				continue
			}
			for _, words := range c.words {
				if strings.Count(err.Error(), words) != 1 {
					t.Errorf("%s for handler %q: want %q once: %v", name, handler, words, err)
				}
			}
			if strings.Contains(err.Error(), "--repair") || strings.Contains(err.Error(), "login page") {
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
