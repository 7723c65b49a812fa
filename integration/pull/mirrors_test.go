package pull

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestWrongMirror pulls through a mirror that serves wrong content, or a wrong media type. The registry has the rest.
func TestWrongMirror(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	upstream, mirror := testkit.Registry(t), testkit.Registry(t)
	n := testkit.Node(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules, Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	if err := n.WriteHosts(upstream.Host(), node.Mirror(upstream.URL(), mirror.URL())); err != nil {
		t.Fatal(err)
	}
	blob := registry.Is("GET", registry.Blob)
	for name, fault := range map[string]registry.Fault{
		"cut":          {Truncate: true, After: 60},
		"empty":        {Status: http.StatusOK, Header: http.Header{"Content-Length": {"0"}}},
		"wrong-digest": {Corrupt: true, After: 50},
	} {
		for _, handler := range []string{"", "native"} {
			t.Run(strings.TrimSpace(name+" "+handler), func(t *testing.T) {
				repo := name + handler + ":v1"
				img := testkit.App(t, images.Options{Version: name + handler})
				testkit.Push(t, upstream, repo, img)
				testkit.Push(t, mirror, repo, img)
				mirror.SetFault(func(q registry.Request) *registry.Fault {
					switch {
					case !blob(q):
						return nil
					case q.Range != "":
						return &registry.Fault{Abort: true} // or it has some more bytes each time
					}
					return &fault
				})
				checkNextPull(t, n, upstream.Ref(repo), handler)
				layers, err := img.Layers()
				if err != nil {
					t.Fatal(err)
				}
				want := len(layers) + 1
				most := want
				if name == "wrong-digest" {
					most += len(layers) - 1 // a layer that is on its way when another one is found to be wrong is fetched again
				}
				if got := upstream.Count(blob); got < want || got > most {
					t.Errorf("got %d requests for blobs, want %d to %d\n%s\nmirror:\n%s", got, want, most, upstream.Dump(), mirror.Dump())
				}
				upstream.Reset()
				mirror.Reset()
			})
		}
	}
	t.Run("media type", func(t *testing.T) {
		digest := testkit.Push(t, mirror, "type:v1", testkit.App(t, images.Options{Version: "type"}))
		mirror.SetFault(func(q registry.Request) *registry.Fault {
			if q.Method != http.MethodHead {
				return nil
			}
			return &registry.Fault{Status: http.StatusOK, Header: http.Header{
				"Content-Type": {"application/octet-stream"}, "Docker-Content-Digest": {digest.String()}, "Content-Length": {"1"},
			}}
		})
		checkNextPull(t, n, upstream.Ref("type:v1"), "")
	})
	t.Run("registry unreachable", func(t *testing.T) {
		if err := n.WriteHosts("upstream.example", node.Mirror("http://"+unreachableHost, mirror.URL())); err != nil {
			t.Fatal(err)
		}
		mirror.SetFault(nil)
		testkit.Push(t, mirror, "node/app:v1", testkit.App(t, images.Options{Version: "pinned"}))
		const ref = "upstream.example/node/app:v1"
		id, err := n.Pull(ctx, ref, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := n.RemoveImage(ctx, id, ""); err != nil {
			t.Fatal(err)
		}
		for what, gone := range map[string]func(registry.Request) bool{"tag": registry.Is("", ""), "digest": registry.Is("GET", "")} {
			mirror.SetFault(registry.FaultIf(registry.Fault{Status: http.StatusNotFound}, gone))
			_, err := n.Pull(ctx, ref, "")
			failure := testkit.ImageUnavailable
			if what == "tag" {
				failure = testkit.ManifestUnavailable
			}
			failure.Check(t, err, ref, testkit.TargetOf(""))
			checkNames(t, err, mirror.Host(), "404 Not Found", unreachableHost, "connection refused", "pinned in scope node since ", " ago) to sha256:",
				"imagepin refresh "+ref+" --scope node", "imagepin pin rm "+ref+" --scope node")
		}
		mirror.SetFault(nil)
		_, err = n.Pull(ctx, "upstream.example/node/app:v11", "")
		testkit.ManifestUnavailable.Check(t, err, "upstream.example/node/app:v11", testkit.TargetOf(""))
		checkNames(t, err, mirror.Host(), "404 Not Found", unreachableHost, "connection refused")
	})
}

// checkNames checks that an error contains all of these.
func checkNames(t *testing.T, err error, all ...string) {
	t.Helper()
	for _, part := range all {
		if !strings.Contains(fmt.Sprint(err), part) {
			t.Errorf("the error does not contain %q: %v", part, err)
		}
	}
}
