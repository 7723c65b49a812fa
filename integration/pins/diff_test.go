package pins

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// pushDiffed pushes a version of an image for two platforms, whose versions share a layer.
func pushDiffed(r *testkit.Rig, ref, version string) (tag, digest string) {
	r.T.Helper()
	tag, digest = r.Push(ref, images.Options{
		Version: version, Env: []string{"RELEASE=" + version}, Labels: map[string]string{"release": version}, User: "65532",
		Random: []images.Random{{Size: 64 << 10, Seed: 1}},
	}, images.HostPlatform(), "linux/arm64")
	return tag, testkit.DigestIn(digest)
}

func diff(r *testkit.Rig, request *api.DiffRequest) *api.DiffResponse {
	r.T.Helper()
	response, err := r.Control().Diff(r.Ctx, request)
	if err != nil {
		r.T.Fatal(err)
	}
	return response
}

// wantDiff checks the digests that were compared, and that the versions differ as they were pushed.
func wantDiff(r *testkit.Rig, when string, d *api.DiffResponse, from, fromIs, to, toIs string) {
	r.T.Helper()
	if d.From.GetDigest() != from || d.FromIs != fromIs || d.To.GetDigest() != to || d.ToIs != toIs {
		r.T.Errorf("%s: got %s (%s) and %s (%s), want %s (%s) and %s (%s)", when, d.From.GetDigest(), d.FromIs, d.To.GetDigest(), d.ToIs, from, fromIs, to, toIs)
	}
	if len(d.Platforms) != 2 {
		r.T.Fatalf("%s: got platforms %v", when, d.Platforms)
	}
	p := d.Platforms[0]
	changes := map[string]int{}
	for _, l := range p.Layers {
		changes[l.Change]++
		if l.Change == "same" && l.Size == 0 {
			r.T.Errorf("%s: got layer %v", when, l)
		}
	}
	if p.Platform != images.HostPlatform() || p.Change != "changed" || !p.Compared || changes["same"] < 2 || changes["added"] != 1 || changes["removed"] != 1 {
		r.T.Errorf("%s: got %v", when, p)
	}
	if p.FromSize < 64<<10 || p.ToSize < 64<<10 || p.FromManifest == p.ToManifest {
		r.T.Errorf("%s: got sizes %d and %d of %s and %s", when, p.FromSize, p.ToSize, p.FromManifest, p.ToManifest)
	}
	var fields []string
	for _, f := range p.Config {
		fields = append(fields, f.Field)
		if f.From == nil || f.To == nil || f.GetFrom() == f.GetTo() {
			r.T.Errorf("%s: got field %v", when, f)
		}
	}
	if got := strings.Join(fields, ", "); !strings.Contains(got, "env RELEASE") || !strings.Contains(got, "label release") || strings.Contains(got, "user") {
		r.T.Errorf("%s: got fields %s", when, got)
	}
}

// TestDiff compares the digests of a pin: with that of a tag that has moved, of which only manifests and configurations are
// fetched and nothing is kept, and with the digest before, for which no registry is needed.
func TestDiff(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules})
	ref, old := pushDiffed(r, "node/app:v1", "old")
	r.MustPull(ref, "")
	_, err := r.Control().Diff(r.Ctx, &api.DiffRequest{Ref: ref})
	testkit.WantCode(t, err, codes.FailedPrecondition, "NoEarlierDigest", ref)
	_, current := pushDiffed(r, "node/app:v1", "current")
	r.MustPull(ref, "") // detects the drift

	r.Reg.Reset()
	before := r.MustState()
	moved := "of the tag in the registry, which has moved"
	d := diff(r, &api.DiffRequest{Ref: ref})
	r.WantRequests("a moved tag", "HEAD manifest", "GET manifest", "GET manifest", "GET blob")
	wantDiff(r, "a moved tag", d, old, "pinned in scope node", current, moved)
	if p := d.Platforms[1]; p.Platform != "linux/arm64" || p.Change != "changed" || p.Compared || len(p.Layers)+len(p.Config) > 0 {
		t.Errorf("got %v for a platform without a runtime handler", p)
	}
	d = diff(r, &api.DiffRequest{Ref: ref, AllPlatforms: true})
	wantDiff(r, "all platforms", d, old, "pinned in scope node", current, moved)
	if p := d.Platforms[1]; !p.Compared || len(p.Layers) == 0 || len(p.Config) == 0 {
		t.Errorf("got %v for another platform", p)
	}
	r.WantState("after a comparison", before)

	if out, code := r.Operator("refresh", ref); code != 10 {
		t.Fatalf("imagepin refresh: exit code %d\n%s", code, out)
	}
	r.Reg.Reset()
	wantDiff(r, "a pin that has moved", diff(r, &api.DiffRequest{Ref: current[len("sha256:"):][:12]}), old, "that the pin had before", current, "pinned in scope node")
	if out, code := r.Operator("diff", ref); code != 0 || !strings.Contains(out, "+ env RELEASE: current\n") || !strings.Contains(out, "- env RELEASE: old\n") {
		t.Errorf("imagepin diff: exit code %d\n%s", code, out)
	}
	for _, args := range []*api.DiffRequest{
		{Ref: old[len("sha256:"):][:12], Digest: current}, {Ref: ref + "@" + old, Digest: current[len("sha256:"):][:12]},
	} {
		wantDiff(r, args.String(), diff(r, args), old, "given", current, "given")
	}
	wantDiff(r, "with a digest", diff(r, &api.DiffRequest{Ref: ref, Digest: old}), current, "pinned in scope node", old, "given")

	r.Reg.Down()
	_, err = r.Control().Diff(r.Ctx, &api.DiffRequest{Ref: ref, Digest: "sha256:" + strings.Repeat("0", 64)})
	testkit.WantCode(t, err, codes.Unavailable, "CannotPullImageManifest", r.Reg.Ref("node/app@sha256:000000000000"))
}

// TestDiffOnTheNode compares digests whose content is on the node without a request to a registry.
func TestDiffOnTheNode(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules})
	ref, old := pushDiffed(r, "kept/app:v1", "old")
	r.MustPull(ref, "")
	other, current := pushDiffed(r, "kept/app:v2", "current")
	r.MustPull(other, "")
	r.Reg.Down()
	r.Reg.Reset()
	wantDiff(r, "two tags", diff(r, &api.DiffRequest{Ref: ref, Digest: current}), old, "pinned in scope node", current, "given")
	r.WantNoRequests("content on the node")
}

// TestDiffWithoutPin compares the digest on the node with that of the tag in the registry, with the credential of the
// operator.
func TestDiffWithoutPin(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	ref, old := pushDiffed(r, "shop/app:v1", "old")
	r.MustPull(ref, "")
	_, current := pushDiffed(r, "shop/app:v1", "current")
	r.Reg.SetAuth(testkit.OnlyAlice(true))
	for _, digest := range []string{"", current} {
		_, err := r.Control().Diff(r.Ctx, &api.DiffRequest{Ref: ref, Digest: digest})
		testkit.WantCode(t, err, codes.Unauthenticated, "PullAccessDenied", r.Reg.Ref("shop/app"))
	}
	alice := &api.Credential{Username: "alice", Password: testkit.AlicePassword}
	wantDiff(r, "a tag", diff(r, &api.DiffRequest{Ref: ref, Credential: alice}), old, "on this node", current, "of the tag in the registry")
	wantDiff(r, "a digest", diff(r, &api.DiffRequest{Ref: ref, Digest: current, Credential: alice}), old, "on this node", current, "given")
	r.Reg.SetAuth(nil)
	r.MustRemove(ref, "")
	wantDiff(r, "not on the node", diff(r, &api.DiffRequest{Ref: ref, Digest: old}), current, "of the tag in the registry", old, "given")
}

// TestDiffErrors checks that errors name what is wrong in the request.
func TestDiffErrors(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules})
	ref, d := pushDiffed(r, "node/app:v1", "old")
	r.MustPull(ref, "")
	layer := r.Blobs(ref)["layer"]
	for _, c := range []struct {
		request *api.DiffRequest
		code    codes.Code
		words   []string
	}{
		{&api.DiffRequest{Ref: "UPPER"}, codes.InvalidArgument, []string{"InvalidReference", "UPPER"}},
		{&api.DiffRequest{Ref: ref, Digest: "nonsense"}, codes.InvalidArgument, []string{"InvalidRequest", "nonsense"}},
		{&api.DiffRequest{Ref: ref, Scope: "nonsense"}, codes.InvalidArgument, []string{"InvalidRequest", "nonsense"}},
		{&api.DiffRequest{Ref: ref, Scope: "workload/shop/app=1"}, codes.NotFound, []string{"UnknownPin", ref, "workload/shop/app=1"}},
		{&api.DiffRequest{Ref: ref + "@" + d}, codes.InvalidArgument, []string{"InvalidRequest", d}},
		{&api.DiffRequest{Ref: r.Reg.Ref("node/absent:v1")}, codes.NotFound, []string{"UnknownImage", r.Reg.Ref("node/absent:v1")}},
		{&api.DiffRequest{Ref: ref, Digest: layer.String()}, codes.FailedPrecondition, []string{"ContentCorrupt", ref, layer.String()}},
		{&api.DiffRequest{Ref: ref, Digest: "sha256:" + strings.Repeat("0", 64)}, codes.NotFound, []string{"CannotPullImageManifest", "sha256:0000"}},
	} {
		_, err := r.Control().Diff(r.Ctx, c.request)
		testkit.WantCode(t, err, c.code, c.words...)
	}
	if out, code := r.Operator("diff"); code != 1 || !strings.Contains(out, "takes REF") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
