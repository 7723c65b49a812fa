package cri

import (
	"strings"

	"github.com/distribution/reference"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// untaggedImage returns the CRI message of an image without keys.
func (s *imageCalls) untaggedImage(u store.Untagged) *runtime.Image {
	uid, username := upstream.ImageUser(u.User)
	return &runtime.Image{
		Id: u.ImageID.String(), Size: uint64(u.Size), Uid: uid, Username: username, Pinned: s.Store.Pinned(u.ImageID),
		Spec: &runtime.ImageSpec{Image: u.ImageID.String()},
	}
}

// damagedImage returns the CRI message of an image that is not ready for any target. It has no names, so that nothing takes
// it for an image that pods can use.
func (s *imageCalls) damagedImage(e imagepin.Entry) *runtime.Image {
	return s.untaggedImage(store.Untagged{Entry: e})
}

// findDamaged returns the damaged keys for an image name in a CRI request, see [store.Store.FindDamaged].
func (s *base) findDamaged(name string) []store.Damaged {
	if found := s.Store.FindDamaged(name); len(found) > 0 {
		return found
	}
	return s.Store.FindDamaged(normalized(name))
}

func isDigested(ref string) bool { return strings.Contains(ref, "@") }

// normalized returns a name in the normalized form of references, or unchanged if it is not a reference.
func normalized(name string) string {
	if len(name) > imagepin.MaxReference {
		return name
	}
	if ref, err := reference.ParseDockerRef(name); err == nil {
		return ref.String()
	}
	return name
}
