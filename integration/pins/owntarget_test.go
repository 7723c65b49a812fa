package pins

import (
	"reflect"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestFallbackIsThatOfTheHandler has the newer digest of a tag ready for another handler only: while the registry is down a pull gives what is
// ready for this one.
func TestFallbackIsThatOfTheHandler(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, DiscardUnpackedLayers: true, Handlers: testkit.OnNative})
	tag, _ := r.Push("app:v1", images.Options{Version: "old"}, images.HostPlatform())
	old := r.MustPull(tag, "")
	r.Push("app:v1", images.Options{Version: "new"}, images.HostPlatform())
	newer := r.MustPull(tag, testkit.Second)
	r.Collect()
	r.Reg.Down()
	if id := r.MustPull(tag, ""); id != old {
		t.Errorf("the pull gives %s, not %s", id, old)
	}
	if id := r.MustPull(tag, testkit.Second); id != newer {
		t.Errorf("the pull for the other handler gives %s, not %s", id, newer)
	}
	for handler, id := range map[string]string{"runc": old, testkit.Second: newer} {
		if got := r.MustStatus(tag, handler).GetId(); got != id {
			t.Errorf("for handler %s the tag means %s, not %s", handler, got, id)
		}
	}
}

// TestOnceCountsWhatWasAdopted pulls, with pull_behavior "once", an image that ctr has pulled, or imported: the first pull asks, and later ones
// do not, also after a restart and for another handler.
func TestOnceCountsWhatWasAdopted(t *testing.T) {
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
		r.WantRequests("a pull of what was adopted, for handler "+step.handler, step.requests...)
	}
	before := r.MustState().Images // leases come and go with the work of others
	r.MustPull(pulled, "")
	if after := r.MustState().Images; !reflect.DeepEqual(before, after) {
		t.Errorf("a pull that asks nobody has changed records:\n%v\nto\n%v", before, after)
	}
	r.KillAndRestart(nil)
	r.Reg.Down()
	r.MustPull(pulled, "")
	r.MustPull(pulled, testkit.Second)
}

// TestForeignSecondSnapshotterAsksNothing makes an image of a foreign platform ready in another snapshotter, after its index has been
// collected: nothing is asked but what the tag means, and nothing where the registry is down or a digest is named.
func TestForeignSecondSnapshotterAsksNothing(t *testing.T) {
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
			t.Fatal("the index is still there")
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
				t.Errorf("the pull gives %s, not %s", got, id)
			}
		}
		r.WantLine(pod, node.ContainerOptions{Image: tag}, testkit.Line(opts, testkit.Foreign))
		r.WantNoRequests("a container of what is here")
		r.MustRemovePod(pod)
		if how == "offline" {
			if err := r.Reg.Up(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
