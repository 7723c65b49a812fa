package cri

import (
	"cmp"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// setVolumeRefs sets the image_ref of a container's image volumes: the digest that is mounted, like the image_ref of the container
// (https://kep.k8s.io/5365). containerd 2.4 does not. What imagepin does not know stays as upstream has it.
func (s *containers) setVolumeRefs(status *runtime.ContainerStatus) {
	for _, m := range status.GetMounts() {
		if ref := s.volumeRef(m.GetImage()); ref != "" {
			m.Image.ImageRef = ref
		}
	}
}

// volumeRef returns the reference by digest of the image that an image volume mounts: in the repository that the pod names, if the node
// has the image from there. It returns the image ID if no registry has returned the image, and "" for an image that is not named by its
// ID.
func (s *containers) volumeRef(spec *runtime.ImageSpec) string {
	id, err := digest.Parse(spec.GetImage())
	if err != nil {
		return ""
	}
	var refs []string
	for _, e := range s.Store.ByID(id) {
		if isDigested(e.Ref) {
			refs = append(refs, e.Ref)
		}
	}
	if len(refs) == 0 {
		return id.String()
	}
	repository, _, _ := strings.Cut(normalized(specifiedBy(spec)), "@")
	if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') {
		repository = repository[:i]
	}
	named := func(ref string) int {
		if imagepin.InRepository(ref, repository) {
			return 0
		}
		return 1
	}
	return slices.MinFunc(refs, func(a, b string) int { return cmp.Or(named(a)-named(b), cmp.Compare(a, b)) })
}
