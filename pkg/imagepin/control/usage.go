package control

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/pieces"
	"github.com/imagepin/imagepin/pkg/imagepin/usage"
)

// DiskUsage implements the API.
func (s *Server) DiskUsage(r *api.DiskUsageRequest, stream grpc.ServerStreamingServer[api.DiskUsageResponse]) error {
	return s.guardedStream(stream.Context(), "DiskUsage", func(ctx context.Context) error { return s.diskUsage(ctx, r, stream) })
}

func (s *Server) diskUsage(ctx context.Context, r *api.DiskUsageRequest, stream grpc.ServerStreamingServer[api.DiskUsageResponse]) error {
	matches, err := matcher(r.GetRefGlob())
	if err != nil {
		return err
	}
	measured, err := s.config.Usage.Measure(ctx)
	if err != nil {
		return err
	}
	first := &api.DiskUsageResponse{
		Content: contentUsage(measured.Content), OtherContent: contentUsage(measured.Other), ResumableContent: contentUsage(measured.Resumable),
	}
	for _, sn := range measured.Snapshotters {
		a := &api.SnapshotterUsage{
			Snapshotter: sn.Name, Snapshots: int64(sn.Count), Size: sn.Size, OtherSnapshots: int64(sn.Other.Count), OtherSize: sn.Other.Size,
		}
		if sn.Err != nil {
			a.Error = sn.Err.Error()
		}
		first.Snapshotters = append(first.Snapshotters, a)
	}
	if err := stream.Send(first); err != nil {
		return err
	}
	var images []*api.ImageUsage
	for _, img := range measured.Images {
		if slices.ContainsFunc(img.Refs, matches) {
			images = append(images, imageUsage(img))
		}
	}
	for piece := range pieces.Split(images) {
		if err := stream.Send(&api.DiskUsageResponse{Images: piece}); err != nil {
			return err
		}
	}
	return nil
}

func imageUsage(img usage.Image) *api.ImageUsage {
	a := &api.ImageUsage{ImageId: img.ID.String(), Refs: img.Refs, Content: img.Content, Unique: img.Unique, Shared: img.Shared}
	for _, u := range img.Unpacked {
		a.Unpacked = append(a.Unpacked, &api.UnpackedUsage{Snapshotter: u.Snapshotter, Size: u.Size, Unknown: u.Unknown})
	}
	return a
}

func contentUsage(s usage.Sum) *api.ContentUsage {
	return &api.ContentUsage{Blobs: int64(s.Count), Size: s.Size}
}
