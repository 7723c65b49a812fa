package cri

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/pieces"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// listImages answers from the index, with one image per image ID. A filter names an image, as in ImageStatus.
func (s *imageCalls) listImages(_ context.Context, r *runtime.ListImagesRequest, _ func(context.Context, *runtime.ListImagesRequest) (*runtime.ListImagesResponse, error)) (*runtime.ListImagesResponse, error) {
	return &runtime.ListImagesResponse{Images: s.list(r.GetFilter())}, nil
}

// streamImages is listImages with the answer split into several messages.
func (s *imageCalls) streamImages(stream grpc.ServerStream) error {
	var r runtime.StreamImagesRequest
	if err := stream.RecvMsg(&r); err != nil {
		return err
	}
	for piece := range pieces.Split(s.list(r.GetFilter())) {
		if err := stream.SendMsg(&runtime.StreamImagesResponse{Images: piece}); err != nil {
			return err
		}
	}
	return nil
}

func (s *imageCalls) list(filter *runtime.ImageFilter) []*runtime.Image {
	name := filter.GetImage().GetImage()
	var (
		count int
		found iter.Seq[store.Image]
	)
	if name == "" {
		count, found = s.Store.InOrder()
	} else {
		some := s.findImages(name)
		count, found = len(some), slices.Values(some)
	}
	images := make([]*runtime.Image, 0, count)
	m := s.newMessages(count)
	for img := range found {
		images = append(images, m.image(img))
	}
	images = append(images, s.untagged(name)...)
	slices.SortFunc(images, func(a, b *runtime.Image) int { return strings.Compare(a.Id, b.Id) })
	return images
}

// findImages returns the images that a name matches.
func (s *imageCalls) findImages(name string) []store.Image {
	var ids []digest.Digest
	for _, e := range s.Store.Find(name) {
		ids = append(ids, e.ImageID)
	}
	slices.Sort(ids)
	var found []store.Image
	for _, id := range slices.Compact(ids) {
		if entries := s.Store.ByID(id); len(entries) > 0 {
			found = append(found, store.Image{ID: id, Entries: entries})
		}
	}
	return found
}

// untagged returns the images without keys, as containerd's CRI lists them, and those that only have damaged keys, because
// kubelet's image garbage collection must see them. name is the name in a filter; "" matches all.
func (s *imageCalls) untagged(name string) []*runtime.Image {
	var images []*runtime.Image
	listed := make(map[digest.Digest]bool)
	for _, d := range s.Store.Damaged() {
		if id := d.ImageID; (name == "" || name == id.String()) && !listed[id] && len(s.Store.ByID(id)) == 0 {
			listed[id] = true
			images = append(images, s.damagedImage(d.Entry))
		}
	}
	if name == "" {
		for _, u := range s.Store.Untagged() {
			images = append(images, s.untaggedImage(u))
		}
	} else if u, ok := s.Store.FindUntagged(name); ok {
		images = append(images, s.untaggedImage(u))
	}
	return images
}
