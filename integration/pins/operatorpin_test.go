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

// TestOperatorPinHoldsWithoutConsistency checks a pin that an operator sets for a tag that no rule pins. Pulls and
// containers follow the pin, also after a refresh. After its removal, they follow the registry.
func TestOperatorPinHoldsWithoutConsistency(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	ref := r.Reg.Ref("app:v1")
	one := r.Version("app:v1", "one")
	if _, err := r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: ref, Digest: one}); err != nil {
		t.Fatal(err)
	}
	two := r.Version("app:v1", "two")
	r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "one")

	resolved, err := r.Control().Resolve(r.Ctx, &api.ResolveRequest{Ref: ref})
	if err != nil || resolved.GetRoot().GetDigest() != one || resolved.GetRegistry().GetDigest() != two || resolved.GetPin().GetScope() != "node" {
		t.Errorf("Resolve: got %v, %v", resolved, err)
	}
	if _, err := r.Control().Refresh(r.Ctx, &api.RefreshRequest{Ref: ref}); err != nil {
		t.Fatal(err)
	}
	r.Version("app:v1", "three")
	r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "two")

	if _, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: ref}); err != nil {
		t.Fatal(err)
	}
	r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "three")
}

// TestControlErrors checks the errors of the control service for unknown and invalid arguments.
func TestControlErrors(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	unknown := r.Reg.Ref("nowhere:v1")
	_, err := r.Control().Inspect(r.Ctx, &api.InspectRequest{Ref: unknown})
	testkit.WantCode(t, err, codes.NotFound, "UnknownImage", unknown)
	_, err = r.Control().Refresh(r.Ctx, &api.RefreshRequest{Ref: unknown})
	testkit.WantCode(t, err, codes.NotFound, "UnknownImage", unknown)
	_, err = r.Control().Refresh(r.Ctx, &api.RefreshRequest{Ref: unknown, Scope: "node"})
	testkit.WantCode(t, err, codes.NotFound, "UnknownPin", unknown)
	_, err = r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: unknown})
	testkit.WantCode(t, err, codes.NotFound, "UnknownPin", unknown)
	_, err = r.Control().Images(r.Ctx, &api.ImagesRequest{RefGlob: "busybox"})
	testkit.WantCode(t, err, codes.InvalidArgument, "InvalidRequest", "busybox")
	_, err = r.Control().Images(r.Ctx, &api.ImagesRequest{Handler: "nope"})
	testkit.WantCode(t, err, codes.InvalidArgument, "UnknownRuntimeHandler", "nope", "runc")
}

// TestPinToAManifest checks that a tag cannot be pinned to the manifest of one platform if the node or the registry has
// its index, unless the operator forces it. A tag of an image without an index can be pinned to its manifest.
func TestPinToAManifest(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	ref, elsewhere := r.Reg.Ref("app:v1"), r.Reg.Ref("elsewhere/app:v1")
	index := r.Version("app:v1", "one")
	r.Version("elsewhere/app:v1", "one") // the same index and manifests, but not on the node
	r.MustPull(ref, "")
	inspected, err := r.Control().Inspect(r.Ctx, &api.InspectRequest{Ref: ref})
	if err != nil {
		t.Fatal(err)
	}
	manifest := inspected.GetKeys()[0].GetManifest()
	for _, name := range []string{ref, elsewhere} {
		_, err := r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: name, Digest: manifest})
		testkit.WantCode(t, err, codes.InvalidArgument, "InvalidRequest", manifest, "imagepin pin set "+name+" "+index, "--force")
		wantPins(r, name, map[string]string{})
		if out, code := r.Operator("pin", "set", name, manifest, "--force"); code != 0 {
			t.Errorf("--force: exit code %d, printed %q", code, out)
		}
		wantPins(r, name, map[string]string{"node": manifest})
	}

	single, byDigest := r.PushImage("single:v1", testkit.App(t, images.Options{Version: "single"}))
	manifest = testkit.DigestIn(byDigest)
	if _, err := r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: single, Digest: manifest}); err != nil {
		t.Error(err)
	}
	r.MustPull(single, "")
	r.Reg.Down() // the node knows that the tag had this digest
	if _, err := r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: single, Digest: manifest}); err != nil {
		t.Error(err)
	}
	wantPins(r, single, map[string]string{"node": manifest})
}

// TestRemovePins removes the pins of several references: an error for one does not keep the others, nor those of other scopes.
func TestRemovePins(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	const workload = "workload/shop/pod-template-hash=7d4b9c"
	one, two, unknown := r.Reg.Ref("one:v1"), r.Reg.Ref("two:v1"), r.Reg.Ref("nowhere:v1")
	digests := map[string]string{one: r.Version("one:v1", "one"), two: r.Version("two:v1", "two")}
	for ref, d := range digests {
		for _, scope := range []string{"node", workload} {
			r.WantOperator(0, []string{"pin", "set", ref, d, "--scope", scope})
		}
	}
	r.WantOperator(1, []string{"pin", "rm", one, unknown, two},
		"Unpinned "+one+" (scope node", "Unpinned "+two+" (scope node", "UnknownPin: "+unknown, "1 pin in other scopes, unchanged: "+workload)
	for ref, d := range digests {
		wantPins(r, ref, map[string]string{workload: d})
	}
	r.WantOperator(0, []string{"pin", "rm", one, two, "--scope", workload}, "Unpinned "+one+" (scope "+workload, "Unpinned "+two+" (scope "+workload)
	for ref := range digests {
		wantPins(r, ref, map[string]string{})
	}
}

// TestShortDigests runs commands with the digests that the tables of other commands print.
func TestShortDigests(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	ref := r.Reg.Ref("app:v1")
	one := r.Version("app:v1", "one")
	id := r.MustPull(ref, "")
	short := func(d string) string { return strings.TrimPrefix(d, "sha256:")[:12] }
	for _, command := range []struct{ args, want string }{
		{"inspect " + short(id), "Reference:  " + id},
		{"inspect " + r.Reg.Ref("app") + "@" + short(one), "Reference:  " + r.Reg.Ref("app") + "@" + one},
		{"pin set " + ref + " " + short(one), "Pinned " + ref + " to " + one},
		{"inspect " + id, "Pin in scope node"},
		{"resolve " + short(one), "Reference:  " + ref},
		{"refresh sha256:" + short(one), ref + " resolves to " + one},
		{"pin rm " + short(id), "Unpinned " + ref},
	} {
		if out, code := r.Operator(strings.Fields(command.args)...); code != 0 || !strings.Contains(out, command.want) {
			t.Errorf("imagepin %s: exit code %d, printed\n%s\nwant %q", command.args, code, out, command.want)
		}
	}
	for args, want := range map[string]string{
		"inspect 0123456789ab":             "UnknownImage: 0123456789ab: not on this node, and not pinned",
		"pin set " + ref + " 0123456789ab": "no digest of " + r.Reg.Ref("app") + " on this node begins with it",
		"-n moby images":                   `namespace "moby": imagepin serves only the namespace of the CRI, "k8s.io"`,
	} {
		if out, code := r.Operator(strings.Fields(args)...); code != 1 || !strings.Contains(out, want) {
			t.Errorf("imagepin %s: exit code %d, printed %q, want %q", args, code, out, want)
		}
	}
}
