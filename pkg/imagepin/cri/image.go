package cri

import (
	"slices"
	"strings"

	"github.com/distribution/reference"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// targetsAnnotation lists the targets that an image is ready for, in the image's spec. ImageSpec.runtime_handler cannot
// be used for this: kubelet's image GC treats an image as unused if its handler is not the handler of its containers.
const targetsAnnotation = "io.imagepin.targets"

// toCRI converts an image to its CRI message. There is one message per image ID, with the names of all its keys.
func (s *imageCalls) toCRI(img store.Image) *runtime.Image {
	var tags, digests, targets []string
	pinned := s.Store.Pinned(img.ID)
	for _, e := range img.Entries {
		switch {
		case s.Store.Expired(e):
		case isDigested(e.Ref):
			digests = append(digests, e.Ref)
		default:
			tags = append(tags, e.Ref)
		}
		targets = append(targets, e.Target.String())
		pinned = pinned || slices.Contains(s.Settings().PinnedImages, e.Ref) || s.Pins.Retains(e.Root.Digest)
	}
	uid, username := upstream.ImageUser(img.Entries[0].User)
	return &runtime.Image{
		Id:          img.ID.String(),
		RepoTags:    distinct(tags),
		RepoDigests: distinct(digests),
		Size:        uint64(img.Entries[0].Size),
		Uid:         uid,
		Username:    username,
		Pinned:      pinned,
		Spec: &runtime.ImageSpec{
			Image:       img.ID.String(),
			Annotations: map[string]string{targetsAnnotation: strings.Join(distinct(targets), ", ")},
		},
	}
}

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

func distinct(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
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
