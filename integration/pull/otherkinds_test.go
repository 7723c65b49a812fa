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

// otherKinds are images whose configuration is not that of a container image.
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

// pushKind pushes an image of another kind, alone and in an index with the node's platform.
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

// TestOtherKindsOfImages pulls, looks up, lists and removes images of other kinds, with the same results as stock.
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
				results := map[string][]string{}
				for binary, n := range nodes {
					before := testkit.State(t, n)
					record := func(what string) { results[binary] = append(results[binary], what) }
					reg.Reset()
					id, err := n.Pull(ctx, ref, "")
					record("pulled: " + id)
					if err != nil {
						t.Logf("%s: %v", binary, err)
					}
					requests := []string{}
					for _, q := range reg.Requests() {
						requests = append(requests, q.Method+" "+q.Path)
					}
					slices.Sort(requests)
					if id != "" {
						record("requests: " + strings.Join(requests, ", ")) // in stock, a failed pull leaves content
					}
					img, err := n.ImageStatus(ctx, ref, "")
					if err != nil {
						t.Fatal(err)
					}
					record(strings.Join(append(img.GetRepoTags(), img.GetRepoDigests()...), " ") + " " + img.GetId())
					all, err := n.ListImages(ctx)
					if err != nil {
						t.Fatal(err)
					}
					for _, i := range all {
						record(strings.Join(append(i.GetRepoTags(), i.GetRepoDigests()...), " ") + " " + i.GetId())
						if i.GetSize() == 0 || i.GetSize() != img.GetSize() {
							t.Errorf("%s: got size %d from ListImages and %d from ImageStatus", binary, i.GetSize(), img.GetSize())
						}
					}
					if id == "" {
						continue // other tests check what a failed pull leaves
					}
					if err := n.RemoveImage(ctx, id, ""); err != nil {
						t.Fatal(err)
					}
					if img, err = n.ImageStatus(ctx, ref, ""); err != nil || img != nil {
						t.Errorf("%s: ImageStatus after the removal: got %v, %v, want none", binary, img, err)
					}
					testkit.NoLeaks(t, n, before)
				}
				if stock, ours := strings.Join(results[node.Stock], "\n"), strings.Join(results[node.Ours], "\n"); stock != ours {
					t.Errorf("stock:\n%s\nours:\n%s", stock, ours)
				}
				if strings.HasPrefix(kind, "wasm") && !strings.Contains(results[node.Ours][0], "sha256:") {
					t.Error("the pull of a wasm image failed")
				}
			})
		}
	}
}

// TestOtherKindOverRestart checks that an image of another kind stays ready for all handlers over a restart.
func TestOtherKindOverRestart(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, DiscardUnpackedLayers: true, Handlers: append([]node.Handler{{Name: "wasm", Platform: "wasip1/wasm"}}, testkit.OnNative...)})
	pushKind(t, r.Reg, "wasm")
	ref := r.Reg.Ref("wasm:v1")
	handlers := []string{"", testkit.Second, "wasm"}
	for _, h := range handlers {
		r.MustPull(ref, h)
	}
	// A name that another tool adds is adopted, as for any image.
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
		t.Error("the adopted image is gone after a restart")
	}
	r.Reg.Reset()
	for _, h := range handlers {
		if r.MustStatus(ref, h) == nil {
			t.Errorf("the image for handler %q is gone after a restart", h)
		}
		r.MustPull(ref, h)
	}
	r.WantRequests("pulls of images on the node", slices.Repeat([]string{"HEAD manifest"}, len(handlers))...)
	if out, ok := r.Command("check"); !ok {
		t.Errorf("check: got findings:\n%s", out)
	}
	var blobs int
	for _, info := range r.MustState().Content {
		if len(info.Labels) > 0 {
			blobs++
		}
	}
	if blobs != 3 {
		t.Errorf("got %d blobs, want manifest, configuration and module", blobs)
	}
}
