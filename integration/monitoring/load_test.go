package monitoring

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// load is a node with a Prometheus that scrapes it. Its methods do what the panels of the dashboard show.
type load struct {
	*testkit.Rig
	prometheus *prometheus
	server     *apiServer
	target     string
}

const native = "native"

func newLoad(t *testing.T) *load {
	t.Helper()
	l := &load{target: testkit.Address(t), server: newAPIServer(t)}
	config := fmt.Sprintf(`
[plugins."io.containerd.server.v1.metrics"]
address = %q
[plugins."io.containerd.imagepin.v1.images"]
max_pins_per_namespace = 2
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/workload/*"]
version_consistency = "workload"
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/strict/*"]
locked = "strict"
[plugins."io.containerd.imagepin.v1.images".cluster]
kubeconfig = %q
`, l.target, l.server.kubeconfig)
	l.Rig = testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: native, Snapshotter: native}}, Extra: config + testkit.PinRules})
	l.prometheus = startPrometheus(t, l.target)
	// Counters have to be scraped before their first change.
	l.prometheus.await(`up == 1`)
	return l
}

// run does everything once.
func (l *load) run() {
	l.T.Helper()
	for _, step := range []func(){l.pulls, l.slowPull, l.failedPulls, l.pins, l.outage, l.claims, l.locks} {
		step()
	}
	l.prometheus.awaitScrape()
}

// pulls pulls an image: cold, again, for a second handler, by a second tag. Then it removes the image.
func (l *load) pulls() {
	l.T.Helper()
	digest := testkit.Push(l.T, l.Reg, "repo/app:1", testkit.AppIndex(l.T, images.Options{Version: "1"}, images.HostPlatform()))
	for _, handler := range []string{"", "", native} {
		l.MustPull(l.Reg.Ref("repo/app:1"), handler)
	}
	if err := l.Reg.Tag("repo/app:same", digest); err != nil {
		l.T.Fatal(err)
	}
	id := l.MustPull(l.Reg.Ref("repo/app:same"), "")
	l.prometheus.awaitScrape()
	l.MustRemove(id, native)
}

// slowPull has a pull in progress until it is scraped.
func (l *load) slowPull() {
	l.T.Helper()
	img := testkit.App(l.T, images.Options{Version: "slow", SingleLayer: true})
	testkit.Push(l.T, l.Reg, "repo/slow:1", img)
	config, err := img.ConfigName()
	if err != nil {
		l.T.Fatal(err)
	}
	scraped := make(chan struct{})
	l.Reg.SetFault(func(q registry.Request) *registry.Fault {
		if q.Kind == registry.Blob && !strings.HasSuffix(q.Path, config.String()) {
			<-scraped
		}
		return nil
	})
	result := testkit.Async(func() (string, error) { return l.Pull(l.Ctx, l.Reg.Ref("repo/slow:1"), "") })
	l.prometheus.await(`imagepin_pulls_running == 1 and imagepin_pulls_left_bytes > 0`)
	close(scraped)
	if _, err := result(); err != nil {
		l.T.Fatal(err)
	}
	l.Reg.SetFault(nil)
}

// failedPulls pulls a tag that does not exist, and one that the registry denies.
func (l *load) failedPulls() {
	l.T.Helper()
	l.mustFail(l.Reg.Ref("repo/app:none"), node.PullOptions{})
	l.Reg.SetFault(registry.FaultIf(registry.Fault{Status: http.StatusForbidden}))
	l.mustFail(l.Reg.Ref("repo/app:1"), node.PullOptions{})
	l.Reg.SetFault(nil)
}

// pins pins two tags and retains their content, moves one of them, and refreshes its pin. The registry deletes the other one, which a
// lookup finds.
func (l *load) pins() {
	l.T.Helper()
	for _, ref := range []string{"pinned/app:1", "pinned/other:1"} {
		tag, _ := l.Push(ref, images.Options{Version: ref}, images.HostPlatform())
		l.MustPull(tag, "")
	}
	if err := l.Reg.Delete("pinned/other@" + l.Pins(l.Reg.Ref("pinned/other:1"))["node"].GetRoot().GetDigest()); err != nil {
		l.T.Fatal(err)
	}
	tag, _ := l.Push("pinned/app:1", images.Options{Version: "moved"}, images.HostPlatform())
	l.MustPull(tag, "")
	l.prometheus.await(`imagepin_pins_drifted == 1 and imagepin_retained_bytes > 0`)
	const hasChanged = 10
	if out, code := l.Operator("refresh", tag); code != hasChanged {
		l.T.Fatalf("imagepin refresh: %d: %s", code, out)
	}
	if out, code := l.Operator("pin", "ls", "--check"); code != hasChanged {
		l.T.Fatalf("imagepin pin ls --check: %d: %s", code, out)
	}
	l.prometheus.await(`imagepin_pins_gone == 1`)
}

// outage pulls an image while the registry is down, and repairs another one that has lost a layer: in vain, and again when
// the registry is up.
func (l *load) outage() {
	l.T.Helper()
	tag, _ := l.Push("repo/damaged:1", images.Options{Version: "damaged"}, images.HostPlatform())
	l.MustPull(tag, "")
	l.Damage("gone", l.Blobs(tag)["layer"])
	l.Reg.Down()
	l.MustPull(l.Reg.Ref("repo/app:1"), "")
	if found := l.repair(); len(found) != 1 || found[0].Repaired {
		l.T.Fatalf("a repair without the registry: got %v, want one finding that is not repaired", found)
	}
	if err := l.Reg.Up(); err != nil {
		l.T.Fatal(err)
	}
	if found := l.repair(); len(found) != 1 || !found[0].Repaired {
		l.T.Fatalf("a repair with the registry: got %v, want one finding that is repaired", found)
	}
}

func (l *load) repair() []*api.Finding {
	l.T.Helper()
	resp, err := l.Control().Check(l.Ctx, &api.CheckRequest{Repair: true})
	if err != nil {
		l.T.Fatal(err)
	}
	return resp.Findings
}

// claims pulls images for a pod whose owner the API server does not tell: it refuses the request, and then it is gone, so
// that the pin is provisional.
func (l *load) claims() {
	l.T.Helper()
	tag, _ := l.Push("workload/app:1", images.Options{Version: "w"}, images.HostPlatform())
	opts := node.PullOptions{Pod: &node.Pod{Config: l.PodConfig(node.PodOptions{
		Namespace: "shop", Labels: map[string]string{"pod-template-hash": "r1"},
	})}}
	l.mustFail(tag, opts)
	l.server.Close()
	if _, err := l.PullWith(l.Ctx, tag, opts); err != nil {
		l.T.Fatal(err)
	}
}

// locks applies a lock with another digest than a container runs, pulls an image that the lock does not name, and fails to apply
// another lock. An image of the lock cannot be made ready again: it is removed and has lost a layer, and the registry is down.
func (l *load) locks() {
	l.T.Helper()
	app, other := l.Reg.Ref("locked/app:1"), l.Reg.Ref("locked/other:1")
	l.Version("locked/app:1", "before")
	l.WantVersion(node.KubeletPod{Image: app}, "before")
	locked := map[string]string{app: l.Version("locked/app:1", "after"), other: l.Version("locked/other:1", "other")}
	l.MustApply(l.WriteLock("lock.yaml", locked), "--detach") // containers are compared after a detached apply
	l.prometheus.await(`imagepin_lock_drifted_containers == 1 and on() imagepin_lock_images{state="ready"} == 2`)

	strict, _ := l.Push("strict/app:1", images.Options{Version: "strict"}, images.HostPlatform())
	l.mustFail(strict, node.PullOptions{})

	l.Damage("gone", l.Blobs(other)["layer"])
	l.Reg.Down()
	l.MustRemove(other, "")
	absent := l.WriteLock("absent.yaml", map[string]string{l.Reg.Ref("locked/absent:1"): locked[other]})
	if out, code := l.Operator("apply", absent); code != 1 {
		l.T.Fatalf("imagepin apply: %d: %s", code, out)
	}
	l.prometheus.await(`imagepin_lock_images{state="missing"} == 1 and on() imagepin_lock_apply_failed == 1`)
}

// mustFail pulls an image and fails the test if it can be pulled.
func (l *load) mustFail(ref string, opts node.PullOptions) {
	l.T.Helper()
	if id, err := l.PullWith(l.Ctx, ref, opts); err == nil {
		l.T.Fatalf("pulled %s as %s, want an error", ref, id)
	}
}
