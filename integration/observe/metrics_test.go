package observe

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// Names of series.
func pulled(done string) string     { return fmt.Sprintf("imagepin_pulls_total{done=%q}", done) }
func resolved(result string) string { return fmt.Sprintf("imagepin_resolves_total{result=%q}", result) }
func pinEvent(event string) string  { return fmt.Sprintf("imagepin_pin_events_total{event=%q}", event) }
func keysOf(snapshotter string) string {
	return fmt.Sprintf("imagepin_keys{platform=%q,snapshotter=%q}", images.HostPlatform(), snapshotter)
}

const (
	resolves    = "imagepin_resolve_seconds_count"
	oldestDrift = "imagepin_pins_oldest_drift_timestamp_seconds"
	fellBack    = "imagepin_registry_fallbacks_total"
)

// TestMetrics checks after each of many steps how it changed the metrics.
func TestMetrics(t *testing.T) {
	address, config := metricsAddress(t)
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}, Extra: config + testkit.PinRules})
	digest := testkit.Push(t, r.Reg, "repo/app:1", testkit.AppIndex(t, images.Options{Version: "1"}, images.HostPlatform()))
	tag := r.Reg.Ref("repo/app:1")
	before := scrape(t, address)

	// changed fails the test unless a step changed exactly these series by these amounts.
	changed := func(step string, want series) {
		t.Helper()
		now := scrape(t, address)
		if got := now.since(before); !maps.Equal(got, want) {
			t.Errorf("%s: got changes %v, want %v", step, got, want)
		}
		before = now
	}
	fail := func(step string, pull func() (string, error)) {
		t.Helper()
		if id, err := pull(); err == nil {
			t.Errorf("%s: pulled %s, want an error", step, id)
		}
	}
	const perImage = 2 // one key for the tag and one for the digest

	for _, zero := range []string{pulled("fetched"), pulled("canceled"), resolved("denied"), pinEvent("expired"), fellBack, keysOf("overlayfs"), keysOf("native"), `imagepin_pins{scope="workload"}`} {
		if v, ok := before[zero]; !ok || v != 0 {
			t.Errorf("initially got %s = %v (exists: %t), want 0", zero, v, ok)
		}
	}

	r.MustPull(tag, "")
	changed("a cold pull", series{pulled("fetched"): 1, resolved("resolved"): 1, resolves: 1, keysOf("overlayfs"): perImage})
	r.MustPull(tag, "")
	changed("a warm pull", series{pulled("up_to_date"): 1, resolved("resolved"): 1, resolves: 1})
	r.MustPull(tag, "native")
	changed("a pull for a second snapshotter", series{pulled("unpacked"): 1, resolved("resolved"): 1, resolves: 1, keysOf("native"): perImage})
	if err := r.Reg.Tag("repo/app:same", digest); err != nil {
		t.Fatal(err)
	}
	r.MustPull(r.Reg.Ref("repo/app:same"), "")
	changed("a pull of a second tag of the image", series{pulled("recorded"): 1, resolved("resolved"): 1, resolves: 1, keysOf("overlayfs"): 1})

	// Concurrent identical pulls are merged.
	twice, _ := r.Push("repo/shared:1", images.Options{Version: "shared"}, images.HostPlatform())
	release := make(chan struct{})
	r.Reg.SetFault(registry.FaultIf(registry.Fault{Hang: release}, registry.Is(http.MethodHead, registry.Manifest)))
	var pulls sync.WaitGroup
	for range 4 {
		pulls.Go(func() {
			if _, err := r.Pull(r.Ctx, twice, ""); err != nil {
				t.Error(err)
			}
		})
	}
	pulls.Go(func() {
		if _, err := r.Pull(r.Ctx, twice, "native"); err != nil {
			t.Error(err)
		}
	})
	testkit.AwaitGoroutines(t, r.Node, 5, "pull.(*Puller).Pull+")
	close(release)
	pulls.Wait()
	r.Reg.SetFault(nil)
	got := scrape(t, address).since(before)
	sum := 0.0
	for name, v := range got {
		if strings.HasPrefix(name, "imagepin_pulls_total") {
			sum += v
		}
	}
	if sum != 2 || got[resolves] != 1 {
		t.Errorf("five concurrent pulls for two targets: got %v pulls and %v digest lookups, want 2 and 1: %v", sum, got[resolves], got)
	}
	before = scrape(t, address)

	fail("a tag that does not exist", func() (string, error) { return r.Pull(r.Ctx, r.Reg.Ref("repo/app:none"), "") })
	changed("a tag that does not exist", series{pulled("failed"): 1, resolved("not_found"): 1, resolves: 1})
	r.Reg.SetFault(registry.FaultIf(registry.Fault{Status: http.StatusForbidden}))
	fail("a pull that is denied", func() (string, error) { return r.Pull(r.Ctx, tag, "") })
	changed("a pull that is denied", series{pulled("failed"): 1, resolved("denied"): 1, resolves: 1})
	r.Reg.SetFault(registry.FaultIf(registry.Fault{Status: http.StatusServiceUnavailable}))
	r.MustPull(tag, "")
	changed("a pull while the registry is down", series{pulled("up_to_date"): 1, fellBack: 1, resolved("unavailable"): 1, resolves: 1})
	fail("a pull that cannot fall back", func() (string, error) { return r.Pull(r.Ctx, r.Reg.Ref("repo/app:none"), "") })
	changed("a pull that cannot fall back", series{pulled("failed"): 1, resolved("unavailable"): 1, resolves: 1})
	r.Reg.SetFault(nil)

	v := testkit.NewVerifier(t, r.Node)
	v.Refuse(true)
	fail("a pull that a verifier refuses", func() (string, error) { return r.Pull(r.Ctx, tag, "") })
	changed("a pull that a verifier refuses", series{pulled("failed"): 1, resolved("resolved"): 1, resolves: 1})
	v.Refuse(false)

	hang := make(chan struct{})
	defer close(hang)
	hangs := r.Reg.Later()
	r.Reg.SetFault(registry.FaultIf(registry.Fault{Hang: hang}))
	ctx, cancel := context.WithCancel(r.Ctx)
	canceled := make(chan error, 1)
	go func() {
		_, err := r.Pull(ctx, tag, "")
		canceled <- err
	}()
	if _, err := r.Reg.Wait(r.Ctx, hangs); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-canceled; err == nil {
		t.Error("a canceled pull returned no error")
	}
	r.Eventually("the canceled pull ends", func() bool { return scrape(t, address)[pulled("canceled")] == 1 })
	changed("a canceled pull", series{pulled("canceled"): 1, resolved("canceled"): 1, resolves: 1})
	r.Reg.SetFault(nil)

	pinned, _ := r.Push("pinned/app:1", images.Options{Version: "p1"}, images.HostPlatform())
	id := r.MustPull(pinned, "")
	retained := scrape(t, address)["imagepin_retained_bytes"]
	if retained == 0 {
		t.Error("got no retained bytes after a pull with a retaining pin")
	}
	changed("a pull that pins", series{
		pulled("fetched"): 1, resolved("resolved"): 1, resolves: 1, keysOf("overlayfs"): perImage,
		pinEvent("made"): 1, `imagepin_pins{scope="node"}`: 1, "imagepin_namespace_pins": 1, "imagepin_retained_bytes": retained,
	})
	r.Push("pinned/app:1", images.Options{Version: "p2"}, images.HostPlatform())
	r.MustPull(pinned, "")
	since := scrape(t, address)[oldestDrift]
	if since == 0 {
		t.Error("got no time of the oldest drift after the pinned tag has moved")
	}
	changed("a pull after the pinned tag has moved", series{
		oldestDrift:          since,
		pulled("up_to_date"): 1, resolved("resolved"): 1, resolves: 1, pinEvent("drifted"): 1, "imagepin_pins_drifted": 1,
	})
	r.MustPull(pinned, "")
	changed("a second pull after the pinned tag has moved", series{pulled("up_to_date"): 1, resolved("resolved"): 1, resolves: 1})

	// A container of another handler needs the image for its snapshotter, without a pull.
	p := r.MustPod("native")
	before = scrape(t, address) // the pod has unpacked the sandbox image
	c, err := r.CreateContainer(r.Ctx, p, node.ContainerOptions{Image: id, UserImage: pinned})
	if err != nil {
		t.Fatal(err)
	}
	changed("a container whose image has to be unpacked", series{pulled("unpacked"): 1, keysOf("native"): 1})
	if err := c.Remove(r.Ctx); err != nil {
		t.Fatal(err)
	}
	r.MustRemovePod(p)
	const hasChanged = 10
	if out, code := r.Operator("refresh", pinned); code != hasChanged {
		t.Fatalf("imagepin refresh: %d: %s", code, out)
	}
	retains := scrape(t, address)["imagepin_retained_bytes"]
	if retains == 0 {
		t.Error("got no retained bytes after the pin moved")
	}
	before["imagepin_retained_bytes"] = retains
	changed("a refresh", series{
		pulled("fetched"): 1, resolved("resolved"): 1, resolves: 1, keysOf("overlayfs"): 1, // the key of the former digest stays
		pinEvent("moved"): 1, "imagepin_pins_drifted": -1, oldestDrift: -since,
	})
	r.MustRemove(r.MustStatus(tag, "").GetId(), "native")
	changed("removing an image", series{keysOf("native"): -perImage})
}
