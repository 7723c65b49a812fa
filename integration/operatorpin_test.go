package integration

import (
	"testing"

	"google.golang.org/grpc/codes"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/node"
)

// TestOperatorPinHoldsWithoutConsistency pins a tag by hand on a node whose rules pin nothing: pulls and containers follow the pin, also
// after a refresh, and the registry again once it is removed.
func TestOperatorPinHoldsWithoutConsistency(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{})
	ref := r.reg.Ref("app:v1")
	one := r.version("app:v1", "one")
	if _, err := r.control().SetPin(r.ctx, &api.SetPinRequest{Ref: ref, Digest: one}); err != nil {
		t.Fatal(err)
	}
	two := r.version("app:v1", "two")
	r.wantVersion(node.KubeletPod{Image: ref, Always: true}, "one")

	resolved, err := r.control().Resolve(r.ctx, &api.ResolveRequest{Ref: ref})
	if err != nil || resolved.GetRoot().GetDigest() != one || resolved.GetRegistry().GetDigest() != two || resolved.GetPin().GetScope() != "node" {
		t.Errorf("resolve says %v (%v)", resolved, err)
	}
	if _, err := r.control().Refresh(r.ctx, &api.RefreshRequest{Ref: ref}); err != nil {
		t.Fatal(err)
	}
	r.version("app:v1", "three")
	r.wantVersion(node.KubeletPod{Image: ref, Always: true}, "two")

	if _, err := r.control().RemovePin(r.ctx, &api.RemovePinRequest{Ref: ref}); err != nil {
		t.Fatal(err)
	}
	r.wantVersion(node.KubeletPod{Image: ref, Always: true}, "three")
}

// TestControlRefusesByName asks the control service for what is not there, or cannot be read.
func TestControlRefusesByName(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{})
	nowhere := r.reg.Ref("nowhere:v1")
	_, err := r.control().Inspect(r.ctx, &api.InspectRequest{Ref: nowhere})
	failed(t, err, codes.NotFound, "UnknownImage", nowhere)
	_, err = r.control().Refresh(r.ctx, &api.RefreshRequest{Ref: nowhere})
	failed(t, err, codes.NotFound, "UnknownImage", nowhere)
	_, err = r.control().Refresh(r.ctx, &api.RefreshRequest{Ref: nowhere, Scope: "node"})
	failed(t, err, codes.NotFound, "UnknownPin", nowhere)
	_, err = r.control().RemovePin(r.ctx, &api.RemovePinRequest{Ref: nowhere})
	failed(t, err, codes.NotFound, "UnknownPin", nowhere)
	_, err = r.control().Images(r.ctx, &api.ImagesRequest{RefGlob: "busybox"})
	failed(t, err, codes.InvalidArgument, "InvalidRequest", "busybox")
	_, err = r.control().Images(r.ctx, &api.ImagesRequest{Handler: "nope"})
	failed(t, err, codes.InvalidArgument, "UnknownRuntimeHandler", "nope", "runc")
}
