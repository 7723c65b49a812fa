package observe

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	ctdimages "github.com/containerd/containerd/v2/core/images"
	"google.golang.org/grpc/codes"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestControlImages lists and inspects the images of a node.
func TestControlImages(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	d := r.Version("node/app:v1", "app")
	ref, free := r.Reg.Ref("node/app:v1"), r.Reg.Ref("free/tool:v1")
	r.Version("free/tool:v1", "tool")
	id := r.MustPull(ref, "")
	r.MustPull(ref, "arm")
	r.MustPull(free, "native")
	host := images.HostPlatform()
	list := func(q *api.ImagesRequest) []string {
		t.Helper()
		resp, err := r.Control().Images(r.Ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, k := range resp.Keys {
			if !strings.Contains(k.Ref, "@") {
				got = append(got, k.Ref+" "+k.Target.Platform+" "+k.Target.Snapshotter)
			}
			if k.Manifest == "" || k.ImageId == "" || k.ChainId == "" || k.Size == 0 || k.Source != "pull" || k.Host != r.Reg.Host() || k.ReadyAt.AsTime().IsZero() || len(k.Handlers) == 0 {
				t.Errorf("incomplete key: %v", k)
			}
		}
		slices.Sort(got)
		return got
	}
	want := func(got []string, keys ...string) {
		t.Helper()
		if !slices.Equal(got, keys) {
			t.Errorf("got keys %q, want %q", got, keys)
		}
	}
	tool, app, arm := free+" "+host+" native", ref+" "+host+" overlayfs", ref+" linux/arm64 overlayfs"
	want(list(&api.ImagesRequest{}), tool, app, arm)
	want(list(&api.ImagesRequest{RefGlob: "**/app:*"}), app, arm)
	want(list(&api.ImagesRequest{RefGlob: "**/nothing:*"}))
	want(list(&api.ImagesRequest{Handler: "arm"}), arm)
	want(list(&api.ImagesRequest{Handler: "runc"}), app)
	for word, q := range map[string]*api.ImagesRequest{"sparc": {Handler: "sparc"}, "app": {RefGlob: "app"}} {
		_, err := r.Control().Images(r.Ctx, q)
		testkit.WantCode(t, err, codes.InvalidArgument, word)
	}

	for _, name := range []string{ref, id} {
		resp, err := r.Control().Inspect(r.Ctx, &api.InspectRequest{Ref: name})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(resp.Keys, func(k *api.Key) bool { return k.Ref == ref && k.ImageId == id && k.Root.Digest == d && k.Pin == "node" }) {
			t.Errorf("Inspect %s: got %v", name, resp.Keys)
		}
		if name == ref && (len(resp.Keys) != 2 || len(resp.Pins) != 1 || resp.Pins[0].Root.Digest != d || resp.Rule.GetVersionConsistency() != "node" || resp.Rule.GetMatch() != "**/node/**") {
			t.Errorf("Inspect %s: got %v", name, resp)
		}
	}
	_, err := r.Control().Inspect(r.Ctx, &api.InspectRequest{Ref: r.Reg.Ref("never:v1")})
	testkit.WantCode(t, err, codes.NotFound, "never:v1")
}

// TestControlResolve checks that Resolve returns what a pull would do and why, and that it changes nothing.
func TestControlResolve(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules + testkit.BehaviorRules[strings.Index(testkit.BehaviorRules, "[["):], Handlers: testkit.OtherTargets})
	ref := r.Reg.Ref("node/app:v1")
	old := r.Version("node/app:v1", "old")
	resolve := func(q *api.ResolveRequest, requests ...string) *api.ResolveResponse {
		t.Helper()
		before := testkit.State(t, r.Node)
		r.Reg.Reset()
		resp, err := r.Control().Resolve(r.Ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		r.WantRequests("Resolve", requests...)
		if d := node.Diff(before, testkit.State(t, r.Node)); d != "" {
			t.Errorf("Resolve changed the node's state:\n%s", d)
		}
		return resp
	}
	missing := func(resp *api.ResolveResponse) (kinds []string) {
		for _, m := range resp.Missing {
			kinds = append(kinds, m.What)
		}
		return kinds
	}
	got := resolve(&api.ResolveRequest{Ref: ref}, "HEAD manifest")
	if got.Root.GetDigest() != old || got.Pin != nil || got.Ready || got.Host != r.Reg.Host() || got.Rule.GetMatch() != "**/node/**" ||
		!strings.Contains(got.Why, "a pull would pin it") || !slices.Equal(missing(got), []string{"index"}) {
		t.Errorf("image that was never pulled: got %v", got)
	}
	r.MustPull(ref, "")
	moved := r.Version("node/app:v1", "moved")
	got = resolve(&api.ResolveRequest{Ref: ref}, "HEAD manifest")
	if got.Root.GetDigest() != old || got.Registry.GetDigest() != moved || got.Pin.GetScope() != "node" || got.Pin.GetDrift() != nil || !got.Ready ||
		!strings.Contains(got.Why, "pinned in scope node since") || len(got.Missing) != 0 || got.Manifest == "" {
		t.Errorf("pinned image: got %v", got)
	}
	got = resolve(&api.ResolveRequest{Ref: ref, Handler: "native"}, "HEAD manifest")
	if got.Ready || got.Target.GetSnapshotter() != "native" || !slices.Equal(missing(got), []string{"snapshot"}) {
		t.Errorf("other snapshotter: got %v", got)
	}
	got = resolve(&api.ResolveRequest{Ref: ref, Handler: "arm"}, "HEAD manifest")
	if got.Ready || !slices.Equal(missing(got), []string{"manifest"}) || got.Missing[0].Name != got.Manifest || got.Missing[0].Size == 0 {
		t.Errorf("other platform: got %v", got)
	}
	got = resolve(&api.ResolveRequest{Ref: ref, Scope: "workload/shop/pod-template-hash=r1"}, "HEAD manifest")
	if got.Root.GetDigest() != moved || got.Pin != nil {
		t.Errorf("other scope: got %v", got)
	}

	cached, _ := r.Push("team/prefer-cached/app:v1", images.Options{Version: "cached"}, images.HostPlatform())
	r.MustPull(cached, "")
	got = resolve(&api.ResolveRequest{Ref: cached})
	if !got.Ready || got.Registry != nil || !strings.Contains(got.Why, `pull_behavior is "prefer-cached"`) || got.Rule.GetPullBehavior() != "prefer-cached" {
		t.Errorf("cached image: got %v", got)
	}
	r.Reg.Down()
	got = resolve(&api.ResolveRequest{Ref: ref})
	if got.Root.GetDigest() != old || !got.Ready || got.RegistryError == "" || got.Registry != nil {
		t.Errorf("registry down: got %v", got)
	}
	for _, q := range []*api.ResolveRequest{{Ref: "Not A Reference"}, {Ref: ref, Handler: "sparc"}, {Ref: ref, Scope: "cluster"}} {
		_, err := r.Control().Resolve(r.Ctx, q)
		testkit.WantCode(t, err, codes.InvalidArgument)
	}
}

// TestControlPull checks that Pull streams its progress, and a result at the end.
func TestControlPull(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Handlers: testkit.OtherTargets})
	ref, _ := r.Push("app:v1", images.Options{Random: []images.Random{{Size: 1 << 20}}}, images.HostPlatform())
	pull := func(q *api.PullRequest) (progress []*api.Progress, result *api.PullResult, err error) {
		t.Helper()
		stream, err := r.Control().Pull(r.Ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return progress, result, nil
			}
			if err != nil {
				return progress, result, err
			}
			if result != nil {
				t.Errorf("got a message after the result: %v", m)
			}
			progress, result = append(progress, m.Progress...), m.Result
		}
	}
	progress, result, err := pull(&api.PullRequest{Ref: ref})
	if err != nil || result.GetDone() != "fetched" || result.GetKey().GetRef() != ref {
		t.Fatalf("first pull: got %v (%v)", result, err)
	}
	blobs := map[string]bool{}
	for _, p := range progress {
		if p.Digest != "" && strings.Contains(p.MediaType, "layer") {
			blobs[p.Digest] = true
		}
	}
	if len(blobs) != 3 {
		t.Errorf("got the progress of %d layers, want 3: %v", len(blobs), progress)
	}
	for handler, want := range map[string]string{"": "up_to_date", "native": "unpacked"} {
		if _, result, err = pull(&api.PullRequest{Ref: ref, Handler: handler}); err != nil || result.GetDone() != want {
			t.Errorf("next pull for handler %q: got %v (%v), want %s", handler, result, err, want)
		}
	}
	if result.GetFallback() != "" {
		t.Errorf("the registry has answered: got fallback %q", result.GetFallback())
	}
	_, _, err = pull(&api.PullRequest{Ref: r.Reg.Ref("app:none")})
	testkit.WantCode(t, err, codes.NotFound, "CannotPullImageManifest", r.Reg.Ref("app:none"))
	_, _, err = pull(&api.PullRequest{Ref: ref, Handler: "sparc"})
	testkit.WantCode(t, err, codes.InvalidArgument, "sparc")
	_, _, err = pull(&api.PullRequest{Ref: ref, Handler: "arm"})
	testkit.WantCode(t, err, codes.NotFound, "NoMatchingPlatform")

	// Without the registry, the result says why the image on the node is used.
	r.Reg.Down()
	_, result, err = pull(&api.PullRequest{Ref: ref})
	if err != nil || result.GetDone() != "up_to_date" || !strings.Contains(result.GetFallback(), "CannotPullImageManifest: "+ref) {
		t.Errorf("pull without the registry: got %v (%v)", result, err)
	}
	out, code := r.Operator("pull", ref)
	if code != 0 || !strings.Contains(out, "imagepin: warning: the registry did not resolve "+ref) || strings.Contains(out, "is up to date") {
		t.Errorf("imagepin pull without the registry: exit code %d, printed %q", code, out)
	}
}

// TestControlCheck damages keys through containerd's API. Check repairs them, and the next check finds nothing.
func TestControlCheck(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules})
	check := func(repair bool) []*api.Finding {
		t.Helper()
		resp, err := r.Control().Check(r.Ctx, &api.CheckRequest{Repair: repair})
		if err != nil {
			t.Fatal(err)
		}
		if resp.Checked == 0 {
			t.Error("nothing was checked")
		}
		return resp.Findings
	}
	r.Version("node/app:v1", "app")
	ref := r.Reg.Ref("node/app:v1")
	id := r.MustPull(ref, "")
	if found := check(false); len(found) != 0 {
		t.Fatalf("got findings on an undamaged node: %v", found)
	}
	// Either the check or imagepin itself repairs the damage first. No image is lost while the registry has it.
	damages := []struct {
		name string
		do   func() error
	}{
		{"the snapshot is removed", func() error {
			info, err := r.Control().Inspect(r.Ctx, &api.InspectRequest{Ref: ref})
			if err != nil {
				return err
			}
			return r.Client().SnapshotService("overlayfs").Remove(testkit.NSContext(r.Ctx), info.Keys[0].ChainId)
		}},
		{"the configuration is removed", func() error {
			return r.Client().ContentStore().Delete(testkit.NSContext(r.Ctx), testkit.MustDigest(t, id))
		}},
		{"the record of the image ID is removed", func() error { return r.Client().ImageService().Delete(testkit.NSContext(r.Ctx), id) }},
		{"the labels of records are removed", func() error {
			for name, img := range testkit.State(t, r.Node).Images {
				if !strings.Contains(name, "node/app") || !strings.HasPrefix(name, "k8s.io/") {
					continue
				}
				if _, err := r.Client().ImageService().Update(testkit.NSContext(r.Ctx), ctdimages.Image{Name: img.Name, Target: img.Target}, "labels"); err != nil {
					return err
				}
			}
			return nil
		}},
	}
	for _, damage := range damages {
		if err := damage.do(); err != nil {
			t.Fatalf("%s: %v", damage.name, err)
		}
		for _, f := range check(true) {
			if f.Problem == "" || f.Repair == "" || f.Subject == "" {
				t.Errorf("%s: incomplete finding: %v", damage.name, f)
			}
		}
		r.Eventually(damage.name+": a check finds nothing", func() bool { return len(check(true)) == 0 })
		if got := r.MustPull(ref, ""); got != id {
			t.Errorf("%s: the next pull returned %s", damage.name, got)
		}
		r.MustRemovePod(r.WantVersion(node.KubeletPod{Image: ref}, "app").Pod)
		if err := r.GC(r.Ctx); err != nil {
			t.Fatal(err)
		}
		r.Eventually(damage.name+": the image is repaired", func() bool { return len(check(false)) == 0 && r.MustStatus(ref, "runc").GetId() == id })
	}

	// An image that cannot be repaired is not offered to pods, and the check reports it.
	r.Reg.Down()
	if err := os.Remove(r.BlobFile(testkit.MustDigest(t, id))); err != nil { // otherwise a repair finds it
		t.Fatal(err)
	}
	if err := r.Client().ContentStore().Delete(testkit.NSContext(r.Ctx), testkit.MustDigest(t, id)); err != nil {
		t.Fatal(err)
	}
	r.Eventually("the damaged image is absent", func() bool { return len(check(true)) > 0 && r.MustStatus(ref, "runc") == nil })
}
