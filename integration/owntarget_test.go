package integration

import (
	"reflect"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// TestFallbackIsThatOfTheHandler has the newer digest of a tag ready for another handler only: while the registry is down a pull gives what is
// ready for this one.
func TestFallbackIsThatOfTheHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{NoPods: true, DiscardUnpackedLayers: true, Handlers: onNative})
	tag, _ := r.push("app:v1", images.Options{Version: "old"}, images.HostPlatform())
	old := r.pull(tag, "")
	r.push("app:v1", images.Options{Version: "new"}, images.HostPlatform())
	newer := r.pull(tag, second)
	r.collect()
	r.reg.Down()
	if id := r.pull(tag, ""); id != old {
		t.Errorf("the pull gives %s, not %s", id, old)
	}
	if id := r.pull(tag, second); id != newer {
		t.Errorf("the pull for the other handler gives %s, not %s", id, newer)
	}
	for handler, id := range map[string]string{"runc": old, second: newer} {
		if got := r.status(tag, handler).GetId(); got != id {
			t.Errorf("for handler %s the tag means %s, not %s", handler, got, id)
		}
	}
}

// TestOnceCountsWhatWasAdopted pulls, with pull_behavior "once", an image that ctr has pulled, or imported: the first pull asks, and later ones
// do not, also after a restart and for another handler.
func TestOnceCountsWhatWasAdopted(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{NoPods: true, Extra: behaviorRules, Handlers: onNative})
	pulled, _ := r.push("once/pulled:v1", images.Options{Version: "pulled"}, images.HostPlatform(), foreign)
	if _, err := r.Ctr(r.ctx, "images", "pull", "--local", "--plain-http", pulled); err != nil {
		t.Fatal(err)
	}
	noticed(t, r.Node, pulled)
	for _, step := range []struct {
		handler  string
		requests []string
	}{{"", []string{"HEAD manifest"}}, {"", nil}, {second, nil}, {second, nil}} {
		r.reg.Reset()
		r.pull(pulled, step.handler)
		r.wantRequests("a pull of what was adopted, for handler "+step.handler, step.requests...)
	}
	before := r.state().Images // leases come and go with the work of others
	r.pull(pulled, "")
	if after := r.state().Images; !reflect.DeepEqual(before, after) {
		t.Errorf("a pull that asks nobody has changed records:\n%v\nto\n%v", before, after)
	}
	r.crash(nil)
	r.reg.Down()
	r.pull(pulled, "")
	r.pull(pulled, second)
}

// TestForeignSecondSnapshotterAsksNothing makes an image of a foreign platform ready in another snapshotter, after its index has been
// collected: nothing is asked but what the tag means, and nothing where the registry is down or a digest is named.
func TestForeignSecondSnapshotterAsksNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: []node.Handler{
		{Name: "foreign", Platform: foreign}, {Name: "foreign-native", Platform: foreign, Snapshotter: "native"},
	}})
	for _, how := range []string{"tag", "digest", "offline", "container"} {
		opts := images.Options{Version: how}
		tag, digest := r.push(how+":v1", opts, images.HostPlatform(), foreign)
		id := r.pull(tag, "foreign")
		pod := r.pod("foreign-native")
		r.collect()
		if _, ok := r.state().Content[digest[len(r.reg.Ref(how+"@")):]]; ok {
			t.Fatal("the index is still there")
		}
		r.reg.Reset()
		switch how {
		case "tag":
			r.pull(tag, "foreign-native")
			r.wantRequests("a pull by tag", "HEAD manifest")
		case "digest":
			r.pull(digest, "foreign-native")
			r.offline("a pull by digest")
		case "offline":
			r.reg.Down()
			if got := r.pull(tag, "foreign-native"); got != id {
				t.Errorf("the pull gives %s, not %s", got, id)
			}
		}
		r.wantLine(pod, node.ContainerOptions{Image: tag}, line(opts, foreign))
		r.offline("a container of what is here")
		r.removePod(pod)
		if how == "offline" {
			if err := r.reg.Up(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
