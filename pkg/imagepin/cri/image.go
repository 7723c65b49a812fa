package cri

import (
	"slices"
	"strings"

	"github.com/distribution/reference"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// targetsAnnotation lists, on an image's spec, the targets it is ready for.
// ImageSpec.runtime_handler cannot: kubelet's image GC takes an image for
// unused whose handler is not that of its containers.
const targetsAnnotation = "io.imagepin.targets"

// toCRI makes the CRI's view of an image: one per image ID, with the names of
// all its keys.
func (s *imageCalls) toCRI(img store.Image) *runtime.Image {
	var tags, digests, targets []string
	pinned := false
	for _, e := range img.Entries {
		if isDigested(e.Ref) {
			digests = append(digests, e.Ref)
		} else {
			tags = append(tags, e.Ref)
		}
		targets = append(targets, e.Target.String())
		pinned = pinned || slices.Contains(s.Settings().PinnedImages, e.Ref) || s.Pins.Retains(e.Root.Digest)
	}
	uid, username := userOf(img.Entries[0].User)
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

// untaggedImage makes the CRI's view of an image that no key accounts for.
func untaggedImage(u store.Untagged) *runtime.Image {
	uid, username := userOf(u.User)
	return &runtime.Image{
		Id: u.ImageID.String(), Size: uint64(u.Size), Uid: uid, Username: username,
		Spec: &runtime.ImageSpec{Image: u.ImageID.String()},
	}
}

func distinct(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

func isDigested(ref string) bool { return strings.Contains(ref, "@") }

// normalized is a name as references are kept, or the name itself where it is
// not a reference.
func normalized(name string) string {
	if ref, err := reference.ParseDockerRef(name); err == nil {
		return ref.String()
	}
	return name
}
