package cri

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// streamBatch is how many images one message of StreamImages holds at most.
const streamBatch = 500

// listImages answers from the index: one entry per image ID. A filter names an
// image, as in ImageStatus.
func (s *Service) listImages(_ context.Context, r *runtime.ListImagesRequest, _ func(context.Context, *runtime.ListImagesRequest) (*runtime.ListImagesResponse, error)) (*runtime.ListImagesResponse, error) {
	return &runtime.ListImagesResponse{Images: s.list(r.GetFilter())}, nil
}

// streamImages is listImages in pieces.
func (s *Service) streamImages(stream grpc.ServerStream) error {
	var r runtime.StreamImagesRequest
	if err := stream.RecvMsg(&r); err != nil {
		return err
	}
	for batch := range slices.Chunk(s.list(r.GetFilter()), streamBatch) {
		if err := stream.SendMsg(&runtime.StreamImagesResponse{Images: batch}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) list(filter *runtime.ImageFilter) []*runtime.Image {
	all := s.Store.Images()
	if name := filter.GetImage().GetImage(); name != "" {
		found := s.Store.Find(name)
		all = slices.DeleteFunc(all, func(img store.Image) bool {
			return !slices.ContainsFunc(found, func(e imagepin.Entry) bool { return e.ImageID == img.ID })
		})
	}
	images := make([]*runtime.Image, len(all))
	for i, img := range all {
		images[i] = s.toCRI(img)
	}
	slices.SortFunc(images, func(a, b *runtime.Image) int { return strings.Compare(a.Id, b.Id) })
	return images
}
