package pull

import (
	"context"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

const (
	// begun is the number of bytes of a layer that a slow registry sends. Manifests and configurations are smaller.
	begun = 100_000
	// patience bounds calls that must not wait for a slow registry. It passes only if the test fails.
	patience = time.Minute
)

// TestSlowRegistryStopsNobody pulls an image with six layers from a registry that sends the beginning of each and no more.
// Meanwhile an image on the node becomes ready for a second snapshotter without the registry, and images of another
// registry are pulled, one of which has a layer of the slow image. Then the slow registry goes on, and its image runs.
func TestSlowRegistryStopsNobody(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	slow := testkit.Registry(t)
	random := func(seeds ...uint64) (layers []images.Random) {
		for _, seed := range seeds {
			layers = append(layers, images.Random{Size: 2 * begun, Seed: seed})
		}
		return layers
	}
	known, _ := r.Push("known:v1", images.Options{Version: "known"}, images.HostPlatform())
	shared, _ := r.Push("shared:v1", images.Options{Version: "shared", Random: random(1)}, images.HostPlatform())
	other, _ := r.Push("other:v1", images.Options{Version: "other", Random: random(7)}, images.HostPlatform())
	theirs := images.Options{Version: "slow", Random: random(1, 2, 3, 4, 5, 6)}
	testkit.Push(t, slow, "app:v1", testkit.AppIndex(t, theirs, images.HostPlatform()))
	for _, handler := range []string{"", testkit.Second} {
		r.MustRemovePod(r.MustPod(handler)) // the sandbox image
	}
	r.MustPull(known, "")

	release := make(chan struct{})
	held := registry.Fault{Hang: release, After: begun}
	slow.SetFault(registry.FaultIf(held, registry.Is("GET", registry.Blob)))
	ended := make(chan error, 1)
	go func() {
		_, err := r.Pull(r.Ctx, slow.Ref("app:v1"), "")
		ended <- err
	}()
	open := func(q registry.Request) bool { return q.Bytes == 0 && !q.Done }
	r.Eventually("as many layers as allowed are being sent", func() bool {
		return slow.Count(registry.Is("GET", registry.Blob), open) >= 3
	})

	ctx, cancel := context.WithTimeout(r.Ctx, patience)
	defer cancel()
	r.Reg.Reset()
	if _, err := r.Pull(ctx, known, testkit.Second); err != nil {
		t.Errorf("an image on the node for a second snapshotter: %v", err)
	}
	if n := r.Reg.Count(registry.Is("GET", "")); n > 0 {
		t.Errorf("an image on the node was fetched:\n%s", r.Reg.Dump())
	}
	for _, ref := range []string{other, shared} {
		if _, err := r.Pull(ctx, ref, ""); err != nil {
			t.Errorf("%s, while another registry is slow: %v", ref, err)
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("the slow pull has ended: %v", err)
	default:
	}
	close(release)
	if err := <-ended; err != nil {
		t.Fatalf("the slow pull failed: %v", err)
	}
	pod := r.MustPod("")
	r.WantLine(pod, node.ContainerOptions{Image: slow.Ref("app:v1")}, testkit.Line(theirs, images.HostPlatform()))
	r.MustRemovePod(pod)
}

// TestWrongBytesFailOnlyTheirRegistry pulls a layer from a registry that sends wrong bytes, and at the same time from
// another registry, and from another repository of the same one. Only the first pull fails, and it leaves nothing.
func TestWrongBytesFailOnlyTheirRegistry(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	bad := testkit.Registry(t)
	before := warm(r, "")
	for seed, ref := range []string{"good", "bad"} {
		opts := images.Options{Version: ref, Random: []images.Random{{Size: 2 * begun, Seed: uint64(seed) + 20}}}
		good := r.Reg
		if ref == "bad" {
			good = bad // another repository of the same registry
		}
		app := testkit.App(t, opts)
		layers, err := app.Layers()
		if err != nil {
			t.Fatal(err)
		}
		layer, err := layers[len(layers)-1].Digest()
		if err != nil {
			t.Fatal(err)
		}
		testkit.Push(t, good, "app:v1", app)
		opts.Env = []string{"TENANT=1"} // another image with the same layers
		testkit.Push(t, bad, "tenant:v1", testkit.App(t, opts))
		release := make(chan struct{})
		wrong := registry.Fault{Hang: release, After: begun, Corrupt: true}
		ofTenant := func(q registry.Request) bool {
			return q.Method == "GET" && q.Repository == "tenant" && q.Reference == layer.String()
		}
		bad.SetFault(registry.FaultIf(wrong, ofTenant))
		failed, pulled := make(chan error, 1), make(chan error, 1)
		pull := func(ref string, ended chan error) {
			_, err := r.Pull(r.Ctx, ref, "")
			ended <- err
		}
		go pull(bad.Ref("tenant:v1"), failed)
		if _, err := bad.Wait(r.Ctx, ofTenant); err != nil {
			t.Fatal(err)
		}
		go pull(good.Ref("app:v1"), pulled)
		close(release)
		if err := <-failed; err == nil {
			t.Errorf("%s: a pull of wrong bytes succeeded", ref)
		}
		if err := <-pulled; err != nil {
			t.Errorf("%s: a pull of the right bytes failed: %v", ref, err)
		}
		bad.SetFault(nil)
		r.MustRemove(good.Ref("app:v1"), "")
	}
	r.Collect()
	r.WantState("after the removals", before)
}
