package observe

import (
	"context"
	"strings"
	"testing"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestStatus checks the state of a healthy node, during a pull whose registry stops sending, and after the tag of a pin has
// moved.
func TestStatus(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	status := func() *api.StatusResponse {
		t.Helper()
		st, err := r.Control().Status(r.Ctx, &api.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	ref := r.Reg.Ref("node/app:v1")
	r.Version("node/app:v1", "old")
	r.MustPull(ref, "")
	r.MustPull(ref, "arm")

	st := status()
	mode := map[node.Mode]string{node.Plugin: "plugin", node.Serve: "serve"}[r.Options().Mode]
	if st.Mode != mode || st.Version == "" || !strings.HasPrefix(st.ContainerdVersion, "v2.") || st.StartedAt.AsTime().IsZero() {
		t.Errorf("got version %q %s containerd %q since %v", st.Version, st.Mode, st.ContainerdVersion, st.StartedAt)
	}
	if i := st.Index; !i.GetReady() || i.GetListedAt().AsTime().IsZero() || i.GetLost() != 0 || i.GetPendingRepairs() != 0 {
		t.Errorf("got index %v", i)
	}
	if st.Images != 2 || st.Pins.GetPins() != 1 || st.Pins.GetDrifted() != 0 || st.Pins.GetMaxRetainedBytes() == 0 || len(st.Pulls)+len(st.Problems) > 0 {
		t.Errorf("got %v", st)
	}
	counts := map[string]int64{}
	for _, target := range st.Targets {
		counts[target.Target.Platform+" "+target.Target.Snapshotter] = target.Images
		if target.Error != "" || len(target.Handlers) == 0 || target.Default != (target.Handlers[0] == "runc") {
			t.Errorf("got target %v", target)
		}
	}
	host := images.HostPlatform()
	if len(counts) != 3 || counts[host+" overlayfs"] != 1 || counts["linux/arm64 overlayfs"] != 1 || counts[host+" native"] != 0 {
		t.Errorf("got images %v", counts)
	}
	if out, code := r.Operator("status"); code != 0 || !strings.Contains(out, "Problems: none") {
		t.Errorf("imagepin status: exit code %d\n%s", code, out)
	}

	r.Version("node/app:v1", "new")
	r.MustPull(ref, "")
	if st := status(); st.Pins.GetDrifted() != 1 || len(st.Problems) > 0 {
		t.Errorf("after the tag has moved: got %v", st)
	}
}

// TestStatusOfPull checks that a pull in progress has the bytes that it has received and will receive, and what it waits for.
func TestStatusOfPull(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Handlers: testkit.OtherTargets})
	const size = 4 << 20
	ref, _ := r.PushImage("slow/app:v1", testkit.App(t, images.Options{Random: []images.Random{{Size: size}}}))
	hang := make(chan struct{})
	defer close(hang)
	r.Reg.SetFault(func(q registry.Request) *registry.Fault {
		if q.Kind == registry.Blob && q.Repository == "slow/app" {
			return &registry.Fault{After: 1 << 10, Hang: hang}
		}
		return nil
	})
	ctx, cancel := context.WithCancel(r.Ctx)
	defer cancel()
	pulled := make(chan error, 2)
	pull := func(handler string) {
		_, err := r.Pull(ctx, ref, handler)
		pulled <- err
	}
	go pull("")
	testkit.Eventually(t, "the pull has received a part", func(ctx context.Context) (bool, error) {
		st, err := r.Control().Status(ctx, &api.StatusRequest{})
		if err != nil || len(st.Pulls) == 0 {
			return false, err
		}
		p := st.Pulls[0]
		return p.Ref == ref && p.Target.GetSnapshotter() == "overlayfs" && p.Received > 0 && p.Total > size && p.Total < 2*size && p.WaitsFor == "registry", nil
	})
	go pull("native")
	testkit.Eventually(t, "a pull waits for the other one", func(ctx context.Context) (bool, error) {
		st, err := r.Control().Status(ctx, &api.StatusRequest{})
		if err != nil || len(st.Pulls) < 2 {
			return false, err
		}
		p := st.Pulls[1]
		return p.Target.GetSnapshotter() == "native" && p.Total > size && p.WaitsFor == "another pull", nil
	})
	if out, _ := r.Operator("status"); !strings.Contains(out, "waits for the registry") || !strings.Contains(out, "waits for another pull") {
		t.Errorf("imagepin status: %s", out)
	}
	cancel()
	for range 2 {
		if err := <-pulled; err == nil {
			t.Error("the pull has succeeded")
		}
	}
	testkit.Eventually(t, "the pull has ended", func(ctx context.Context) (bool, error) {
		st, err := r.Control().Status(ctx, &api.StatusRequest{})
		return len(st.GetPulls()) == 0, err
	})
}
