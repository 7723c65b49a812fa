package cri

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// requestedName is the annotation of an image in the request to upstream, with the name that the caller gave. Upstream
// stores the request and returns the image when it lists containers. imagepin then replaces the image ID by the name.
const requestedName = imagepin.LabelPrefix + "requested-name"

// setImageID replaces the name in spec by the image ID, and keeps the original name as UserSpecifiedImage.
func setImageID(spec *runtime.ImageSpec, e imagepin.Entry) {
	id := e.ImageID.String()
	if spec.GetImage() != id && spec.GetUserSpecifiedImage() == "" {
		annotate(spec, requestedName, spec.GetImage())
		spec.UserSpecifiedImage = spec.GetImage()
	}
	spec.Image = id
}

// annotate adds an annotation to the image of a request to upstream.
func annotate(spec *runtime.ImageSpec, key, value string) {
	if spec.Annotations == nil {
		spec.Annotations = make(map[string]string)
	}
	spec.Annotations[key] = value
}

// ownAnnotations are the annotations of images in requests to upstream that callers neither send nor see.
var ownAnnotations = []string{requestedName, specifiedImage, unresolved}

// dropOwnAnnotations removes them if a caller has sent them: kubelet puts the annotations of the pod on its image volumes.
func dropOwnAnnotations(specs []*runtime.ImageSpec) {
	for _, spec := range specs {
		for _, key := range ownAnnotations {
			delete(spec.Annotations, key)
		}
	}
}

// restoreName undoes setImageID, nameForGuest and annotate.
func restoreName(spec *runtime.ImageSpec) {
	if !hasOwnAnnotations(spec) {
		return
	}
	spec.UserSpecifiedImage = specifiedBy(spec)
	if name, ok := spec.Annotations[requestedName]; ok {
		spec.Image, spec.UserSpecifiedImage = name, ""
	}
	forgetOwnAnnotations(spec)
}

// hasOwnAnnotations reports whether an image in an answer of upstream, which can be nil, has an annotation of ownAnnotations.
func hasOwnAnnotations(spec *runtime.ImageSpec) bool {
	return slices.ContainsFunc(ownAnnotations, func(key string) bool { _, ok := spec.GetAnnotations()[key]; return ok })
}

// forgetOwnAnnotations removes them from an image in an answer of upstream, which can be nil.
func forgetOwnAnnotations(spec *runtime.ImageSpec) {
	if !hasOwnAnnotations(spec) {
		return
	}
	for _, key := range ownAnnotations {
		delete(spec.Annotations, key)
	}
	if len(spec.Annotations) == 0 {
		spec.Annotations = nil
	}
}

func restoreNames(containers []*runtime.Container) {
	for _, c := range containers {
		restoreName(c.GetImage())
	}
}

func (s *containers) listContainers(ctx context.Context, r *runtime.ListContainersRequest, next func(context.Context, *runtime.ListContainersRequest) (*runtime.ListContainersResponse, error)) (*runtime.ListContainersResponse, error) {
	resp, err := next(ctx, r)
	restoreNames(resp.GetContainers())
	return resp, err
}

func (s *containers) streamContainers(stream grpc.ServerStream) error {
	return relay(stream, s.runtimes.StreamContainers, func(resp *runtime.StreamContainersResponse) error {
		restoreNames(resp.GetContainers())
		return nil
	})
}
