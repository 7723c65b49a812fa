package pull

import (
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestColdPullRequests checks that a first and a second pull send no more requests than with stock, and authenticate at
// most once.
func TestColdPullRequests(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	stock, ours := testkit.Node(t, node.Options{Binary: node.Stock}), testkit.Node(t, node.Options{})
	auths := map[string]*registry.Auth{"anonymous": nil, "basic": testkit.OnlyAlice(false), "bearer": testkit.OnlyAlice(true)}
	contents := map[string]remote.Taggable{
		"index":    testkit.AppIndex(t, images.Options{Version: "index"}, images.HostPlatform(), "linux/s390x"),
		"manifest": testkit.App(t, images.Options{Version: "manifest"}),
	}
	for _, name := range slices.Sorted(maps.Keys(auths)) {
		reg := testkit.Registry(t)
		reg.SetAuth(auths[name])
		for _, kind := range slices.Sorted(maps.Keys(contents)) {
			t.Run(name+" "+kind, func(t *testing.T) {
				digest := testkit.Push(t, reg, kind+":v1", contents[kind])
				for _, ref := range []string{kind + ":v1", kind + ":v1", kind + "@" + digest.String()} {
					var dumps [2]string
					var counts [2]int
					for i, n := range []*node.Node{stock, ours} {
						reg.Reset()
						if _, err := n.PullWith(ctx, reg.Ref(ref), node.PullOptions{Auth: testkit.AsAlice()}); err != nil {
							t.Fatal(err)
						}
						dumps[i], counts[i] = reg.Dump(), reg.Count()
					}
					if refused := reg.Count(func(q registry.Request) bool { return q.Status == http.StatusUnauthorized }); refused > 1 {
						t.Errorf("%s: got %d authentications, want at most 1:\n%s", ref, refused, dumps[1])
					}
					if counts[1] > counts[0] {
						t.Errorf("%s: got %d requests, want at most %d:\n%s\nstock:\n%s", ref, counts[1], counts[0], dumps[1], dumps[0])
					}
				}
				for _, n := range []*node.Node{stock, ours} {
					img, err := n.ImageStatus(ctx, reg.Ref(kind+":v1"), "")
					if err != nil {
						t.Fatal(err)
					}
					if err := n.RemoveImage(ctx, img.GetId(), ""); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// TestWarmPull pulls an image on the node: one HEAD request by tag, none by digest, and nothing is written.
func TestWarmPull(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{Handlers: []node.Handler{
		{Name: "native", Snapshotter: "native"}, {Name: "foreign", Platform: "linux/s390x"},
	}})
	digest := testkit.Push(t, reg, "app:v1", testkit.AppIndex(t, images.Options{}, images.HostPlatform(), "linux/s390x"))
	tag, byDigest := reg.Ref("app:v1"), reg.Ref("app@"+digest.String())
	handlers := []string{"", "native", "foreign"}
	for _, h := range handlers {
		if _, err := n.Pull(ctx, tag, h); err != nil {
			t.Fatal(err)
		}
	}
	before := testkit.State(t, n)
	for _, h := range handlers {
		for _, test := range []struct {
			ref   string
			heads int
		}{{tag, 1}, {byDigest, 0}, {tag + "@" + digest.String(), 0}} {
			reg.Reset()
			if _, err := n.Pull(ctx, test.ref, h); err != nil {
				t.Fatal(err)
			}
			if reg.Count(registry.Is("HEAD", registry.Manifest)) != test.heads || reg.Count() != test.heads {
				t.Errorf("handler %q: warm pull of %s: want only %d HEAD requests:\n%s", h, test.ref, test.heads, reg.Dump())
			}
		}
	}
	// The times of the records are compared too.
	if after := testkit.State(t, n); !reflect.DeepEqual(before, after) {
		t.Errorf("warm pulls wrote:\n%s\nrecords before: %+v\nafter: %+v", node.Diff(before, after), before.Images, after.Images)
	}
}

// TestSecondSnapshotterFetchesNothing makes an image ready in a second snapshotter while its layers are on the node:
// one HEAD request by tag, none by digest.
func TestSecondSnapshotterFetchesNothing(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	for _, name := range []string{"one", "two"} {
		digest := testkit.Push(t, reg, name+":v1", testkit.App(t, images.Options{Version: name}))
		ref, heads := reg.Ref(name+":v1"), 1
		if _, err := n.Pull(ctx, ref, ""); err != nil {
			t.Fatal(err)
		}
		if name == "two" {
			ref, heads = reg.Ref(name+"@"+digest.String()), 0
		}
		reg.Reset()
		if _, err := n.Pull(ctx, ref, "native"); err != nil {
			t.Fatal(err)
		}
		if reg.Count() != heads {
			t.Errorf("%s in a second snapshotter: want only %d HEAD requests:\n%s", ref, heads, reg.Dump())
		}
	}
}

// TestConcurrentPulls starts 100 pulls of one image for one target, and 30 for three targets. Each time, the tag is
// resolved once, and every blob is fetched once.
func TestConcurrentPulls(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		callers  int
		handlers []string
		blobs    int // config and two layers of each platform, which share the first layer
	}{
		{"one target", 100, []string{""}, 3},
		{"three targets", 30, []string{"", "native", "arm"}, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			reg := testkit.Registry(t)
			n := testkit.Node(t, node.Options{Handlers: []node.Handler{
				{Name: "native", Snapshotter: "native"}, {Name: "arm", Platform: "linux/arm64"},
			}})
			testkit.Push(t, reg, "app:v1", testkit.AppIndex(t, images.Options{}, images.HostPlatform(), "linux/arm64"))
			release := make(chan struct{})
			reg.SetFault(registry.FaultIf(registry.Fault{Hang: release}, registry.Is("HEAD", "")))

			var pulls sync.WaitGroup
			for i := range test.callers {
				handler := test.handlers[i%len(test.handlers)]
				pulls.Go(func() {
					if _, err := n.Pull(testkit.Context(t), reg.Ref("app:v1"), handler); err != nil {
						t.Errorf("handler %q: %v", handler, err)
					}
				})
			}
			testkit.AwaitGoroutines(t, n, test.callers, "pull.(*Puller).Pull+")
			close(release)
			pulls.Wait()

			if heads := reg.Count(registry.Is("HEAD", "")); heads != 1 {
				t.Errorf("got %d HEAD requests, want 1", heads)
			}
			if got := reg.Count(registry.Is("GET", registry.Blob)); got != test.blobs {
				t.Errorf("got %d GET requests for blobs, want %d", got, test.blobs)
			}
			checkOnce(t, reg)
			if t.Failed() {
				t.Log(reg.Dump())
			}
		})
	}
}

// checkOnce fails the test if something was fetched from the registry more than once.
func checkOnce(t *testing.T, reg *registry.Registry) {
	t.Helper()
	seen := map[string]bool{}
	for _, q := range reg.Requests() {
		if q.Method == http.MethodGet && seen[q.Path] {
			t.Errorf("%s was fetched more than once", q.Path)
		}
		seen[q.Path] = seen[q.Path] || q.Method == http.MethodGet
	}
}
