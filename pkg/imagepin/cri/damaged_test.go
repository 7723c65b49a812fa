package cri

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

const damageReason = "the file of its index is gone"

// damaged makes the image of a node damaged.
func (v *verifyingNode) damaged(t *testing.T) imagepin.Key {
	t.Helper()
	st := v.base.Store.(*store.Store)
	e := v.base.Store.ByRef(adoptedTag)[0]
	_, seen, _ := st.See(e.Key)
	if evicted, err := st.EvictSeen(v.Context(t), seen, damageReason); err != nil || !evicted {
		t.Fatalf("got evicted %t, %v", evicted, err)
	}
	return e.Key
}

// TestDamagedImage has an image that is recorded but damaged. ImageStatus does not return it, ListImages lists it without
// names, and CreateContainer tries to make it ready, and says what is wrong if that fails.
func TestDamagedImage(t *testing.T) {
	v := newVerifyingNode(t, policy.Off)
	root := v.root()
	v.damaged(t)
	id := v.img.Config.Digest.String()
	for _, name := range []string{adoptedTag, id} {
		resp, err := v.imageCalls.imageStatus(t.Context(), &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: name, RuntimeHandler: "runc"}}, nil)
		if err != nil || resp.GetImage() != nil {
			t.Errorf("ImageStatus of %s: got %v, %v, want none", name, resp.GetImage(), err)
		}
	}
	for _, filter := range []string{"", id} {
		listed := v.imageCalls.list(&runtime.ImageFilter{Image: &runtime.ImageSpec{Image: filter}})
		if len(listed) != 1 || listed[0].Id != id || len(listed[0].RepoTags)+len(listed[0].RepoDigests) > 0 {
			t.Errorf("ListImages with filter %q: got %v, want the image without names", filter, listed)
		}
	}
	if listed := v.imageCalls.list(&runtime.ImageFilter{Image: &runtime.ImageSpec{Image: adoptedTag}}); len(listed) > 0 {
		t.Errorf("ListImages of the tag: got %v, want none", listed)
	}
	err := v.create(t)
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "ImageNotReady") || !strings.Contains(err.Error(), damageReason) || strings.Contains(err.Error(), "discard_unpacked_layers") {
		t.Errorf("CreateContainer: got %v", err)
	}
	if len(v.puller.needs) != 1 || v.puller.needs[0].Root.Digest != root {
		t.Errorf("CreateContainer asked for %+v, want %s", v.puller.needs, root)
	}
}

// TestRemoveDamaged removes a damaged image by each of its names, with nothing left.
func TestRemoveDamaged(t *testing.T) {
	for name, remove := range map[string]func(v *verifyingNode) ([]imagepin.Entry, error){
		"by tag": func(v *verifyingNode) ([]imagepin.Entry, error) { return v.RemoveUnused(t.Context(), adoptedTag, "") },
		"by ID": func(v *verifyingNode) ([]imagepin.Entry, error) {
			return v.RemoveUnused(t.Context(), v.img.Config.Digest.String(), "")
		},
		"by short ID": func(v *verifyingNode) ([]imagepin.Entry, error) {
			return v.RemoveUnused(t.Context(), v.img.Config.Digest.Encoded()[:12], "runc")
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVerifyingNode(t, policy.Off)
			key := v.damaged(t)
			removed, err := remove(v)
			if err != nil || len(removed) != 1 || removed[0].Key != key {
				t.Errorf("got removed %v, %v, want %s", removed, err, key)
			}
			if left := v.base.Store.Damaged(); len(left) > 0 {
				t.Errorf("damaged keys are left: %v", left)
			}
			if left := v.Records(t); len(left) > 0 {
				t.Errorf("records are left: %v", left)
			}
			if v.HasBlob(t, v.img.Layer.Digest) || v.HasSnapshot(t, "first", v.img.ChainID) {
				t.Error("content is left")
			}
		})
	}
}
