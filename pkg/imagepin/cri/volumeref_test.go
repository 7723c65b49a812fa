package cri

import (
	"testing"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// TestVolumeRef returns the digest in the repository that the pod names.
func TestVolumeRef(t *testing.T) {
	p := newPinnedNode(t, policy.Off)
	v := versionOf("one", "")
	p.put(v, "", pinnedTag, v.byDigest)
	copied := "registry.example/copies/app@" + v.root.Digest.String()
	p.put(v, "", copied)
	imported := versionOf("imported", "")
	rt, err := p.Runtimes().Lookup("")
	noError(t, err)
	_, err = p.Store.(*store.Store).Put(p.ctx(), "", imagepin.Entry{
		Key: imagepin.Key{Ref: "registry.example/imported:v1", Target: rt.Target}, Root: imported.root, Manifest: imported.root.Digest,
		ImageID: imported.id, Source: imagepin.SourceImported, Record: "registry.example/imported:v1", RecordTarget: imported.root,
	})
	noError(t, err)
	s := &containers{p.base}
	for name, want := range map[string]string{
		pinnedTag: v.byDigest, v.byDigest: v.byDigest, "registry.example/copies/app:2": copied, "registry.example/copies/app": copied,
		"registry.example/other:v1": copied, "": copied, // the first of all
	} {
		if got := s.volumeRef(&runtime.ImageSpec{Image: v.id.String(), UserSpecifiedImage: name}); got != want {
			t.Errorf("%q: got %s, want %s", name, got, want)
		}
	}
	for image, want := range map[string]string{
		imported.id.String(): imported.id.String(), versionOf("unknown", "").id.String(): versionOf("unknown", "").id.String(), pinnedTag: "",
	} {
		if got := s.volumeRef(&runtime.ImageSpec{Image: image, UserSpecifiedImage: pinnedTag}); got != want {
			t.Errorf("%s: got %q, want %q", image, got, want)
		}
	}
	status := &runtime.ContainerStatus{Mounts: []*runtime.Mount{{HostPath: "/etc/hosts"}, {Image: &runtime.ImageSpec{}}, {Image: &runtime.ImageSpec{Image: v.id.String()}}}}
	s.setVolumeRefs(status)
	if got := status.GetMounts()[2].GetImage().GetImageRef(); got != copied {
		t.Errorf("got %q, want %q", got, copied)
	}
	s.setVolumeRefs(nil)
	byName := &runtime.ContainerStatus{Mounts: []*runtime.Mount{{Image: &runtime.ImageSpec{Image: pinnedTag, ImageRef: "of upstream"}}}}
	s.setVolumeRefs(byName)
	if got := byName.GetMounts()[0].GetImage().GetImageRef(); got != "of upstream" {
		t.Errorf("an image that is not named by its ID: got %q, want what upstream has", got)
	}
}
