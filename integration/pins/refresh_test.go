package pins

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	ctdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc/codes"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// refreshed formats the result of a refresh as sorted lines "scope or target, before, after, error".
func refreshed(resp *api.RefreshResponse) []string {
	var out []string
	for _, x := range resp.GetRefreshed() {
		what := x.Scope
		if x.Target != nil {
			what = x.Target.Platform + " on " + x.Target.Snapshotter
		}
		out = append(out, fmt.Sprint(what, " ", x.Before, " ", x.After, " ", x.Error))
	}
	slices.Sort(out)
	return out
}

// TestRefresh moves the pins of all scopes, or of one, and makes the new digest ready for every target of the tag.
func TestRefresh(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	ref, host := r.Reg.Ref("workload/app:v1"), images.HostPlatform()
	const r1, r2 = "workload/shop/pod-template-hash=r1", "workload/shop/pod-template-hash=r2"
	one := r.Version("workload/app:v1", "one")
	pod := func(hash, handler string) node.KubeletPod {
		opts := revision("shop", "pod-template-hash", hash)
		opts.Handler = handler
		return node.KubeletPod{PodOptions: opts, Image: ref, Gate: true}
	}
	for _, handler := range []string{"", "native", "arm"} {
		r.MustRemovePod(r.WantVersion(pod("r1", handler), "one").Pod)
	}
	r.MustRemovePod(r.WantVersion(pod("r2", ""), "one").Pod)
	refresh := func(scope string, changed bool, want ...string) {
		t.Helper()
		resp, err := r.Control().Refresh(r.Ctx, &api.RefreshRequest{Ref: ref, Scope: scope})
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			want[i] += " "
		}
		slices.Sort(want)
		if got := refreshed(resp); resp.Changed != changed || resp.Ref != ref || !slices.Equal(got, want) {
			t.Errorf("refresh of scope %q: got %q (changed %t), want %q", scope, got, resp.Changed, want)
		}
	}
	all := func(scopes []string, before, after string) []string {
		want := []string{
			host + " on overlayfs " + before + " " + after, host + " on native " + before + " " + after, "linux/arm64 on overlayfs " + before + " " + after,
		}
		for _, s := range scopes {
			want = append(want, s+" "+before+" "+after)
		}
		return want
	}
	refresh("", false, all([]string{r1, r2}, one, one)...)
	two := r.Version("workload/app:v1", "two")
	refresh("", true, all([]string{r1, r2}, one, two)...)
	wantPins(r, ref, map[string]string{r1: two, r2: two})
	if p := r.Pins(ref)[r1]; p.MadeBy != "refresh" || len(p.History) != 1 || p.History[0].Digest != one || p.History[0].By != "use" || p.Drift != nil {
		t.Errorf("pin after the refresh: got %v", p)
	}
	r.Reg.Reset()
	for _, handler := range []string{"", "native", "arm"} {
		r.MustRemovePod(r.WantVersion(pod("r1", handler), "two").Pod)
		r.MustRemovePod(r.WantVersion(pod("r2", handler), "two").Pod)
	}
	if n := r.Reg.Count(registry.In("workload/app")); n != 0 {
		t.Errorf("pods after the refresh: got %d requests, want 0:\n%s", n, r.Reg.Dump())
	}
	three := r.Version("workload/app:v1", "three")
	refresh(r2, true, all([]string{r2}, two, three)...)
	wantPins(r, ref, map[string]string{r1: two, r2: three})
	r.MustRemovePod(r.WantVersion(pod("r1", ""), "two").Pod)
	r.MustRemovePod(r.WantVersion(pod("r2", ""), "three").Pod)
	r.KillAndRestart(nil)
	wantPins(r, ref, map[string]string{r1: two, r2: three})
	r.MustRemovePod(r.WantVersion(pod("r1", "arm"), "two").Pod)
	r.MustRemovePod(r.WantVersion(pod("r2", "arm"), "three").Pod)
}

// TestRefreshWhilePulling refreshes repeatedly while the tag moves and pods pull. Each refresh returns the current
// digest, and all targets have the last one.
func TestRefreshWhilePulling(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	ref := r.Reg.Ref("node/app:v1")
	ids := map[string]bool{}
	push := func(version string) string {
		d := r.Version("node/app:v1", version)
		return d
	}
	last := push("0")
	ids[r.MustPull(ref, "")] = true
	r.MustPull(ref, "arm")
	for round := range 4 {
		var pulls []func() (string, error)
		for range 3 {
			for _, handler := range []string{"", "native", "arm"} {
				pulls = append(pulls, testkit.Async(func() (string, error) { return r.Pull(r.Ctx, ref, handler) }))
			}
		}
		last = push(fmt.Sprint(round + 1))
		resp, err := r.Control().Refresh(r.Ctx, &api.RefreshRequest{Ref: ref})
		if err != nil || !resp.Changed || resp.Registry.Digest != last {
			t.Errorf("Refresh: got %v, %v", resp, err)
		}
		for _, pull := range pulls {
			if _, err := pull(); err != nil {
				t.Errorf("pull during the refresh: %v", err)
			}
		}
	}
	wantPins(r, ref, map[string]string{"node": last})
	for _, handler := range []string{"runc", "native", "arm"} {
		r.MustPull(ref, handler)
		if got := r.MustStatus(ref, handler).GetRepoDigests(); !slices.Contains(got, r.Reg.Ref("node/app@"+last)) {
			t.Errorf("ImageStatus for handler %s: got %q, want %s", handler, got, last)
		}
	}
}

// TestRefreshThatFails checks that a refresh that fails changes nothing: the pinned digest still runs.
func TestRefreshThatFails(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	ref := r.Reg.Ref("node/app:v1")
	old := r.Version("node/app:v1", "old")
	refresh := func(ref, scope string) (*api.RefreshResponse, error) {
		return r.Control().Refresh(r.Ctx, &api.RefreshRequest{Ref: ref, Scope: scope})
	}
	_, err := refresh(ref, "")
	testkit.WantCode(t, err, codes.NotFound, ref)
	for _, handler := range []string{"", "arm"} {
		r.MustRemovePod(r.WantVersion(node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: ref, Gate: true}, "old").Pod)
	}
	_, err = refresh(ref, "workload/shop/pod-template-hash=r1")
	testkit.WantCode(t, err, codes.NotFound, ref)
	for _, scope := range []string{"cluster", "workload/shop", "workload//a=b", "nodes"} {
		_, err = refresh(ref, scope)
		testkit.WantCode(t, err, codes.InvalidArgument, scope)
	}
	_, err = refresh(r.Reg.Ref("node/app@"+old), "")
	testkit.WantCode(t, err, codes.InvalidArgument, "digest")
	_, err = refresh("UPPER CASE", "")
	testkit.WantCode(t, err, codes.InvalidArgument)

	still := func(why string) {
		t.Helper()
		wantPins(r, ref, map[string]string{"node": old})
		for _, handler := range []string{"", "arm"} {
			r.MustRemovePod(r.WantVersion(node.KubeletPod{PodOptions: node.PodOptions{Handler: handler}, Image: ref, Gate: true}, "old").Pod)
		}
		if t.Failed() {
			t.Fatal(why)
		}
	}
	before := testkit.State(t, r.Node)
	same := func(why string) {
		t.Helper()
		if d := node.Diff(before, testkit.State(t, r.Node)); d != "" {
			t.Errorf("%s changed the node's state:\n%s", why, d)
		}
	}
	r.Reg.Down()
	_, err = refresh(ref, "")
	testkit.WantCode(t, err, codes.Unavailable, "CannotPullImageManifest")
	same("a refresh with the registry down")
	still("a refresh with the registry down")
	if err := r.Reg.Up(); err != nil {
		t.Fatal(err)
	}
	r.Reg.SetFault(registry.FaultIf(registry.Fault{Status: http.StatusForbidden}))
	_, err = refresh(ref, "")
	testkit.WantCode(t, err, codes.PermissionDenied, "PullAccessDenied")
	r.Reg.SetFault(nil)
	same("a refresh that was denied")

	// The new index has only one of the platforms.
	_, d := r.Push("node/app:v1", images.Options{Version: "new"}, images.HostPlatform())
	resp, err := refresh(ref, "")
	if err != nil || resp.Changed || len(resp.Refreshed) != 3 {
		t.Fatalf("Refresh to an index without a platform: got %v, %v", resp, err)
	}
	for _, x := range resp.Refreshed {
		if x.Before != old || x.After != old {
			t.Errorf("a pin or an image moved: %v", x)
		}
		if missing := x.Target.GetPlatform() == "linux/arm64"; missing != (x.Error != "") || missing && !strings.Contains(x.Error, "NoMatchingPlatform") {
			t.Errorf("target %v: got error %q", x.Target, x.Error)
		}
	}
	if !strings.HasSuffix(d, resp.Registry.GetDigest()) {
		t.Errorf("digest in the registry: got %v, want %s", resp.Registry, d)
	}
	still("a refresh to an index without a platform")
}

// TestPinByHand checks SetPin and RemovePin, and their errors for invalid requests.
func TestPinByHand(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OtherTargets, Extra: testkit.ConsistencyRules + `
[plugins."io.containerd.imagepin.v1.images"]
max_pins_per_namespace = 1
`})
	ref := r.Reg.Ref("node/app:v1")
	one, two := r.Version("node/app:v1", "one"), r.Version("node/app:v1", "two")
	nowhere := "sha256:" + strings.Repeat("0", 64)
	set := func(ref, scope, digest string) (*api.SetPinResponse, error) {
		return r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: ref, Scope: scope, Digest: digest})
	}
	for _, test := range []struct {
		ref, scope, digest string
		code               codes.Code
		word               string
	}{
		{ref, "", "two", codes.InvalidArgument, `"two"`},
		{ref, "", "sha256:abc", codes.InvalidArgument, "sha256:abc"},
		{ref, "", "", codes.InvalidArgument, "digest"},
		{r.Reg.Ref("node/app@" + one), "", one, codes.InvalidArgument, "digest"},
		{"Not A Reference", "", one, codes.InvalidArgument, "Not A Reference"},
		{ref, "cluster", one, codes.InvalidArgument, "cluster"},
		{ref, "workload/shop/label", one, codes.InvalidArgument, "workload/shop/label"},
		{ref, "", nowhere, codes.NotFound, "CannotPullImageManifest"},
	} {
		_, err := set(test.ref, test.scope, test.digest)
		testkit.WantCode(t, err, test.code, test.word)
	}
	_, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: ref})
	testkit.WantCode(t, err, codes.NotFound, ref)
	wantPins(r, ref, map[string]string{})

	resp, err := set(ref, "", one)
	if err != nil || resp.Previous != "" || resp.Pin.GetMadeBy() != "operator" || resp.Pin.GetScope() != "node" {
		t.Fatalf("first SetPin: got %v, %v", resp, err)
	}
	r.WantVersion(node.KubeletPod{Image: ref}, "one")
	_, err = set(r.Reg.Ref("node/other:v1"), "", one)
	testkit.WantCode(t, err, codes.NotFound)
	r.Version("node/other:v1", "other")
	_, err = set(r.Reg.Ref("node/other:v1"), "", r.Version("node/other:v1", "other"))
	testkit.WantCode(t, err, codes.ResourceExhausted, "PinLimitReached", "max_pins_per_namespace")
	resp, err = set(ref, "node", two)
	if err != nil || resp.Previous != one || resp.Pin.GetRoot().GetDigest() != two || len(resp.Pin.GetHistory()) != 1 {
		t.Fatalf("second SetPin: got %v, %v", resp, err)
	}
	r.WantVersion(node.KubeletPod{Image: ref}, "two")
	_, err = set(ref, "node", nowhere)
	testkit.WantCode(t, err, codes.NotFound, "CannotPullImageManifest")
	wantPins(r, ref, map[string]string{"node": two})

	gone, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: ref, Scope: "node"})
	if err != nil || gone.Pin.GetRoot().GetDigest() != two {
		t.Errorf("RemovePin: got %v, %v", gone, err)
	}
	wantPins(r, ref, map[string]string{})
	_, err = r.Control().Pins(r.Ctx, &api.PinsRequest{RefGlob: "busybox"})
	testkit.WantCode(t, err, codes.InvalidArgument, "busybox")
	_, err = r.Control().Pins(r.Ctx, &api.PinsRequest{Scope: "cluster"})
	testkit.WantCode(t, err, codes.InvalidArgument, "cluster")
}

// TestDamagedPins damages labels of pins. After a restart, a pin with damaged details still applies. A pin with a
// damaged version, reference or scope is ignored, and its record stays.
func TestDamagedPins(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules})
	ctx := namespaces.WithNamespace(r.Ctx, "imagepin")
	damage := map[string]map[string]string{ // by repository
		"drift": {"drift": "{"}, "history": {"history": "[1]"}, "made": {"made": "yesterday"}, "used": {"used": "never"},
		"version": {"version": "?"}, "newer": {"version": "99"}, "ref": {"ref": "UPPER"}, "scope": {"scope": "cluster"},
	}
	readable := []string{"drift", "history", "made", "used"}
	digests := map[string]string{}
	for _, repo := range slices.Sorted(maps.Keys(damage)) {
		digests[repo] = r.Version("node/"+repo+":v1", repo)
		r.MustPull(r.Reg.Ref("node/"+repo+":v1"), "")
		for label, value := range damage[repo] {
			label = "io.imagepin.pin." + label
			img := ctdimages.Image{Name: "node/" + r.Reg.Ref("node/"+repo+":v1"), Labels: map[string]string{label: value}}
			if _, err := r.Client().ImageService().Update(ctx, img, "labels."+label); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.KillAndRestart(nil)
	for _, repo := range slices.Sorted(maps.Keys(damage)) {
		ref := r.Reg.Ref("node/" + repo + ":v1")
		want := map[string]string{}
		if slices.Contains(readable, repo) {
			want["node"] = digests[repo]
		} else if img, err := r.Client().ImageService().Get(ctx, "node/"+ref); err != nil || img.Target.Digest.String() != digests[repo] {
			t.Errorf("the record of %s changed: %v, %v", repo, img, err)
		}
		wantPins(r, ref, want)
	}
	if got := strings.Count(r.Logs(), "ignoring unreadable pin"); got != len(damage)-len(readable) {
		t.Errorf("got %d log lines of ignored pins, want %d", got, len(damage)-len(readable))
	}
	// The next pull overwrites an unreadable record.
	ref := r.Reg.Ref("node/version:v1")
	moved := r.Version("node/version:v1", "moved")
	r.MustPull(ref, "")
	wantPins(r, ref, map[string]string{"node": moved})
	r.KillAndRestart(nil)
	wantPins(r, ref, map[string]string{"node": moved})
}
