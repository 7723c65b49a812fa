package pins

import (
	"testing"

	"google.golang.org/grpc/codes"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
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
