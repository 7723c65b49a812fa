package cri

import (
	"slices"

	"github.com/distribution/reference"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// specifiedImage is the annotation of an image in the request to upstream, with the name that the caller gave as
// UserSpecifiedImage. It is on images for guests that pull themselves.
const specifiedImage = imagepin.LabelPrefix + "user-specified-image"

// nameForGuest makes upstream name the images of containers by digest, if the guests of the handler pull images themselves.
// Upstream gives the runtime UserSpecifiedImage, or else a tag of the image (see package upstream). A guest would resolve the
// tag again, to another build if it has moved.
func (s *containers) nameForGuest(configs []*runtime.ContainerConfig, images []containerImage, handler string) {
	if !s.Settings().GuestPull[handler] {
		return
	}
	for _, w := range images {
		if w.spec != containerOf(configs, w.spec).GetImage() {
			continue // an image volume
		}
		byDigest := s.guestReference(w)
		annotate(w.spec, specifiedImage, w.spec.GetUserSpecifiedImage())
		w.spec.UserSpecifiedImage = byDigest.String()
	}
}

// specifiedBy returns the UserSpecifiedImage that the caller gave for an image in an answer of upstream.
func specifiedBy(spec *runtime.ImageSpec) string {
	if name, ok := spec.GetAnnotations()[specifiedImage]; ok {
		return name
	}
	return spec.GetUserSpecifiedImage()
}

// guestReference returns the reference by digest from which a guest pulls a container's image: in the repository that the pod
// names, if the node has the digest from there, and otherwise in that of the image.
func (s *containers) guestReference(w containerImage) reference.Named {
	named, _ := podReference(w.spec, w.entry)
	if named == nil {
		return w.byDigest()
	}
	has := func(e imagepin.Entry) bool { return imagepin.InRepository(e.Ref, named.Name()) }
	if ref, err := reference.WithDigest(reference.TrimNamed(named), w.Root.Digest); err == nil && slices.ContainsFunc(s.Store.ByRoot(w.Root.Digest), has) {
		return ref
	}
	return w.byDigest()
}
