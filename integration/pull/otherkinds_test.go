package pull

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	ctdimages "github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// otherKinds are images whose configuration is of another kind than a container image's: configuration and layers by media type.
var otherKinds = map[string]struct {
	configType, config, layerType string
}{
	"wasm": {
		"application/vnd.wasm.config.v0+json",
		`{"created":"2026-01-01T00:00:00Z","architecture":"wasm","os":"wasip1","layerDigests":["sha256:93a44bbb96c751218e4c00d479e4c14358122a389acca16205b1e4d0dc5f9476"],"component":{"exports":["wasi:cli/run@0.2.0"],"imports":[]}}`,
		"application/wasm",
	},
	"empty":        {"application/vnd.oci.empty.v1+json", "{}", "application/vnd.example.content"},
	"empty-layers": {"application/vnd.oci.empty.v1+json", "{}", "application/vnd.oci.image.layer.v1.tar+gzip"},
	"chart":        {"application/vnd.cncf.helm.config.v1+json", `{"name":"chart","version":"1.0.0","apiVersion":"v2"}`, "application/vnd.cncf.helm.chart.content.v1.tar+gzip"},
	"no-json":      {"application/vnd.example.config", "MZ", "application/vnd.example.content"},
}

// pushKind pushes an image of another kind, and one in an index that names the node's platform.
func pushKind(t *testing.T, reg *registry.Registry, kind string) {
	t.Helper()
	k := otherKinds[kind]
	encode := func(v any) []byte {
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	blob := func(mediaType string, content []byte) map[string]any {
		return map[string]any{"mediaType": mediaType, "digest": reg.PushBlob(kind, content).String(), "size": len(content)}
	}
	const manifestType, indexType = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"
	body := encode(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": blob(k.configType, []byte(k.config)),
		"layers": []any{blob(k.layerType, []byte("content of "+kind))},
	})
	manifest := reg.PushRaw(kind+":v1", images.Raw{MediaType: manifestType, Body: body})
	os, arch, _ := strings.Cut(images.HostPlatform(), "/")
	reg.PushRaw(kind+":indexed", images.Raw{MediaType: indexType, Body: encode(map[string]any{
		"schemaVersion": 2, "mediaType": indexType, "manifests": []any{map[string]any{
			"mediaType": manifestType, "digest": manifest.String(), "size": len(body), "platform": map[string]any{"os": os, "architecture": arch},
		}},
	})})
}

// TestOtherKindsOfImages pulls, looks up, lists and removes what is not a container image, as stock does and with the same answers.
func TestOtherKindsOfImages(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	nodes := map[string]*node.Node{}
	for _, binary := range []string{node.Stock, node.Ours} {
		nodes[binary] = testkit.Node(t, node.Options{Binary: binary, NoPods: true})
	}
	for _, kind := range slices.Sorted(maps.Keys(otherKinds)) {
		pushKind(t, reg, kind)
		for _, tag := range []string{":v1", ":indexed"} {
			t.Run(kind+tag, func(t *testing.T) {
				ref := reg.Ref(kind + tag)
				said := map[string][]string{}
				for binary, n := range nodes {
					before := testkit.State(t, n)
					say := func(what string) { said[binary] = append(said[binary], what) }
					reg.Reset()
					id, err := n.Pull(ctx, ref, "")
					say("pulled: " + id)
					if err != nil {
						t.Logf("%s: %v", binary, err)
					}
					blobs := []string{}
					for _, q := range reg.Requests() {
						blobs = append(blobs, q.Method+" "+q.Path)
					}
					slices.Sort(blobs)
					if id != "" {
						say("requests: " + strings.Join(blobs, ", ")) // a pull that failed leaves content in stock
					}
					img, err := n.ImageStatus(ctx, ref, "")
					if err != nil {
						t.Fatal(err)
					}
					say(strings.Join(append(img.GetRepoTags(), img.GetRepoDigests()...), " ") + " " + img.GetId())
					all, err := n.ListImages(ctx)
					if err != nil {
						t.Fatal(err)
					}
					for _, i := range all {
						say(strings.Join(append(i.GetRepoTags(), i.GetRepoDigests()...), " ") + " " + i.GetId())
						if i.GetSize() == 0 || i.GetSize() != img.GetSize() {
							t.Errorf("%s: listed with size %d, and %d by its name", binary, i.GetSize(), img.GetSize())
						}
					}
					if id == "" {
						continue // what a failed pull leaves is for other tests
					}
					if err := n.RemoveImage(ctx, id, ""); err != nil {
						t.Fatal(err)
					}
					if img, err = n.ImageStatus(ctx, ref, ""); err != nil || img != nil {
						t.Errorf("%s: after its removal it is %v (%v)", binary, img, err)
					}
					testkit.NoLeaks(t, n, before)
				}
				if stock, ours := strings.Join(said[node.Stock], "\n"), strings.Join(said[node.Ours], "\n"); stock != ours {
					t.Errorf("stock:\n%s\nours:\n%s", stock, ours)
				}
				if strings.HasPrefix(kind, "wasm") && !strings.Contains(said[node.Ours][0], "sha256:") {
					t.Error("a wasm image is not pulled")
				}
			})
		}
	}
}

// TestOtherKindOverRestart keeps an image of another kind over a restart, for every handler, and a check finds nothing.
func TestOtherKindOverRestart(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, DiscardUnpackedLayers: true, Handlers: append([]node.Handler{{Name: "wasm", Platform: "wasip1/wasm"}}, testkit.OnNative...)})
	pushKind(t, r.Reg, "wasm")
	ref := r.Reg.Ref("wasm:v1")
	handlers := []string{"", testkit.Second, "wasm"}
	for _, h := range handlers {
		r.MustPull(ref, h)
	}
	// A name that another tool gives it is adopted, as that of any image.
	img, err := r.Client().ImageService().Get(testkit.NSContext(r.Ctx), ref)
	if err != nil {
		t.Fatal(err)
	}
	adopted := r.Reg.Ref("wasm:adopted")
	if _, err := r.Client().ImageService().Create(testkit.NSContext(r.Ctx), ctdimages.Image{Name: adopted, Target: img.Target}); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForImage(t, r.Node, adopted)
	r.Collect()
	r.KillAndRestart(nil)
	if r.MustStatus(adopted, "") == nil {
		t.Error("what was adopted is gone after a restart")
	}
	r.Reg.Reset()
	for _, h := range handlers {
		if r.MustStatus(ref, h) == nil {
			t.Errorf("for handler %q it is gone after a restart", h)
		}
		r.MustPull(ref, h)
	}
	r.WantRequests("pulls of what is here", slices.Repeat([]string{"HEAD manifest"}, len(handlers))...)
	if out, ok := r.Command("check"); !ok {
		t.Errorf("a check finds:\n%s", out)
	}
	var layers int
	for _, info := range r.MustState().Content {
		if len(info.Labels) > 0 {
			layers++
		}
	}
	if layers != 3 {
		t.Errorf("%d blobs are here, not manifest, configuration and module", layers)
	}
}
