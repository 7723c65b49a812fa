package pins

import (
	"reflect"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestFallbackPerHandler checks that, while the registry is down, a pull gets the image that is ready for its handler,
// although another handler has a newer one.
func TestFallbackPerHandler(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, DiscardUnpackedLayers: true, Handlers: testkit.OnNative})
	tag, _ := r.Push("app:v1", images.Options{Version: "old"}, images.HostPlatform())
	old := r.MustPull(tag, "")
	r.Push("app:v1", images.Options{Version: "new"}, images.HostPlatform())
	newer := r.MustPull(tag, testkit.Second)
	r.Collect()
	r.Reg.Down()
	if id := r.MustPull(tag, ""); id != old {
		t.Errorf("pull: got %s, want %s", id, old)
	}
	if id := r.MustPull(tag, testkit.Second); id != newer {
		t.Errorf("pull for the other handler: got %s, want %s", id, newer)
	}
	for handler, id := range map[string]string{"runc": old, testkit.Second: newer} {
		if got := r.MustStatus(tag, handler).GetId(); got != id {
			t.Errorf("ImageStatus for handler %s: got %s, want %s", handler, got, id)
		}
	}
}

// TestOnceWithAdoptedImage pulls an image that ctr has pulled, with pull_behavior "once". The first pull sends a
// request to the registry. Later pulls send none, also for another handler and after a crash.
func TestOnceWithAdoptedImage(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.BehaviorRules, Handlers: testkit.OnNative})
	pulled, _ := r.Push("once/pulled:v1", images.Options{Version: "pulled"}, images.HostPlatform(), testkit.Foreign)
	if _, err := r.Ctr(r.Ctx, "images", "pull", "--local", "--plain-http", pulled); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForImage(t, r.Node, pulled)
	for _, step := range []struct {
		handler  string
		requests []string
	}{{"", []string{"HEAD manifest"}}, {"", nil}, {testkit.Second, nil}, {testkit.Second, nil}} {
		r.Reg.Reset()
		r.MustPull(pulled, step.handler)
		r.WantRequests("a pull of an adopted image for handler "+step.handler, step.requests...)
	}
	before := r.MustState().Images // leases change concurrently
	r.MustPull(pulled, "")
	if after := r.MustState().Images; !reflect.DeepEqual(before, after) {
		t.Errorf("a pull without requests changed the records from\n%v\nto\n%v", before, after)
	}
	r.KillAndRestart(nil)
	r.Reg.Down()
	r.MustPull(pulled, "")
	r.MustPull(pulled, testkit.Second)
}

// TestForeignSecondSnapshotterFetchesNothing makes a foreign image ready in a second snapshotter after its index was
// collected. A pull by tag sends only a HEAD request, and works offline. A pull by digest sends none.
func TestForeignSecondSnapshotterFetchesNothing(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{
		{Name: "foreign", Platform: testkit.Foreign}, {Name: "foreign-native", Platform: testkit.Foreign, Snapshotter: "native"},
	}})
	for _, how := range []string{"tag", "digest", "offline", "container"} {
		opts := images.Options{Version: how}
		tag, digest := r.Push(how+":v1", opts, images.HostPlatform(), testkit.Foreign)
		id := r.MustPull(tag, "foreign")
		pod := r.MustPod("foreign-native")
		r.Collect()
		if _, ok := r.MustState().Content[digest[len(r.Reg.Ref(how+"@")):]]; ok {
			t.Fatal("the index was not collected")
		}
		r.Reg.Reset()
		switch how {
		case "tag":
			r.MustPull(tag, "foreign-native")
			r.WantRequests("a pull by tag", "HEAD manifest")
		case "digest":
			r.MustPull(digest, "foreign-native")
			r.WantNoRequests("a pull by digest")
		case "offline":
			r.Reg.Down()
			if got := r.MustPull(tag, "foreign-native"); got != id {
				t.Errorf("offline pull: got %s, want %s", got, id)
			}
		}
		r.WantLine(pod, node.ContainerOptions{Image: tag}, testkit.Line(opts, testkit.Foreign))
		r.WantNoRequests("a container of an image on the node")
		r.MustRemovePod(pod)
		if how == "offline" {
			if err := r.Reg.Up(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
