package cri

import (
	"context"
	"testing"

	"github.com/distribution/reference"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// TestNameForGuest creates containers of a handler whose guests pull images themselves. Upstream gets the image by digest, and
// callers what they have sent.
func TestNameForGuest(t *testing.T) {
	for name, sent := range map[string]*runtime.ImageSpec{
		"as kubelet":                   {UserSpecifiedImage: adoptedTag},
		"as kubelet, with annotations": {UserSpecifiedImage: adoptedTag, Annotations: map[string]string{"a": "b"}},
		"by name":                      {Image: adoptedTag},
		"by ID":                        {},
		"forged annotations":           {UserSpecifiedImage: adoptedTag, Annotations: map[string]string{requestedName: "other:1", specifiedImage: "other:1"}},
		"a forged annotation":          {UserSpecifiedImage: adoptedTag, Annotations: map[string]string{specifiedImage: "other:1"}},
		"a name of another image":      {UserSpecifiedImage: "registry.example/other:1"},
	} {
		for _, guest := range []bool{true, false} {
			v := newVerifyingNode(t, policy.Off)
			v.base.Settings = ctdtest.Always(&Settings{GuestPull: map[string]bool{v.base.Runtimes().Default().Handler: guest}})
			spec := proto.CloneOf(sent)
			if spec.Image == "" {
				spec.Image = v.img.Config.Digest.String()
			}
			want := proto.CloneOf(spec)
			byDigest := byDigest(v.base.Store.ByRef(adoptedTag)[0]).String()
			var got *runtime.ImageSpec
			_, err := v.containers.createContainer(t.Context(), &runtime.CreateContainerRequest{
				PodSandboxId: adoptedSandbox, Config: &runtime.ContainerConfig{Image: spec},
			}, func(_ context.Context, r *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error) {
				got = r.GetConfig().GetImage()
				return &runtime.CreateContainerResponse{ContainerId: "container"}, nil
			})
			noError(t, err)
			if (got.GetUserSpecifiedImage() == byDigest) != guest || got.GetImage() != v.img.Config.Digest.String() {
				t.Errorf("%s, guest %v: upstream got %v", name, guest, got)
			}
			if guest && specifiedBy(got) != sent.GetUserSpecifiedImage() && specifiedBy(got) != sent.GetImage() {
				t.Errorf("%s: got the name %q", name, specifiedBy(got))
			}
			delete(want.GetAnnotations(), specifiedImage)
			delete(want.GetAnnotations(), requestedName)
			if len(want.GetAnnotations()) == 0 {
				want.Annotations = nil
			}
			if restoreName(got); len(got.GetAnnotations()) == 0 {
				got.Annotations = nil
			}
			if !proto.Equal(got, want) {
				t.Errorf("%s: callers get %v, want %v", name, got, want)
			}
		}
	}
}

// TestGuestReference pulls in the repository that a pod names, if the node has the digest from there.
func TestGuestReference(t *testing.T) {
	v := newVerifyingNode(t, policy.Off)
	e := v.base.Store.ByRef(adoptedTag)[0]
	inRepository := func(name string) string {
		ref, err := reference.ParseNamed(name)
		noError(t, err)
		ref, err = reference.WithDigest(reference.TrimNamed(ref), e.Root.Digest)
		noError(t, err)
		return ref.String()
	}
	check := func(named, want string) {
		t.Helper()
		w := containerImage{spec: &runtime.ImageSpec{Image: e.ImageID.String(), UserSpecifiedImage: named}, entry: e}
		w.Root = e.Root
		if got := v.containers.guestReference(w).String(); got != want {
			t.Errorf("%q: got %s, want %s", named, got, want)
		}
	}
	const other = "registry.example/other:1"
	for _, named := range []string{adoptedTag, other, e.ImageID.String(), "", e.ImageID.Encoded()[:12]} {
		check(named, inRepository(adoptedTag))
	}
	copied := e
	copied.Ref, copied.Record = other, inRepository(other)
	_, err := v.base.Store.(*store.Store).Put(v.containers.namespaced(t.Context()), "", copied)
	noError(t, err)
	check(other, inRepository(other))
	check(adoptedTag, inRepository(adoptedTag))
}
