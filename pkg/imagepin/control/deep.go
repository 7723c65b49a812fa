package control

import (
	"context"
	"time"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
)

const (
	// deepRate is how fast a deep check reads by default, in bytes per second. It leaves bandwidth of the disk for
	// other work.
	deepRate = 100 << 20
	// deepEvery is how often a deep check reports its progress.
	deepEvery = 200 * time.Millisecond
)

// DeepCheck implements the API.
func (s *Server) DeepCheck(r *api.DeepCheckRequest, stream grpc.ServerStreamingServer[api.DeepCheckResponse]) error {
	return s.guardedStream(stream.Context(), "DeepCheck", func(ctx context.Context) error { return s.deepCheck(ctx, r, stream) })
}

func (s *Server) deepCheck(ctx context.Context, r *api.DeepCheckRequest, stream grpc.ServerStreamingServer[api.DeepCheckResponse]) error {
	p := &deepProgress{stream: stream, now: &api.DeepCheckProgress{}}
	rate := r.GetBytesPerSecond()
	if rate == 0 {
		rate = deepRate
	}
	report, err := s.config.Health.DeepCheck(ctx, health.DeepOptions{BytesPerSecond: rate, Progress: p.read, PinnedRef: s.pinnedRef})
	if err != nil {
		return err
	}
	p.now.Findings = int64(report.Differences())
	if err := p.send(); err != nil {
		return err
	}
	resp := s.report(ctx, report, repairs{all: r.GetRepair(), removeExited: r.GetRemoveExited()}, func() error {
		p.now.Processed++
		return p.send()
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.checkPins(ctx, r.GetRepair(), resp); err != nil {
		return err
	}
	return stream.Send(&api.DeepCheckResponse{Result: resp})
}

// pinnedRef returns the reference of a pin at a digest; "" if there is none.
func (s *Server) pinnedRef(root digest.Digest) string {
	for _, p := range s.config.Pins.List() {
		if p.Root.Digest == root {
			return p.Ref
		}
	}
	return ""
}

// deepProgress sends the progress of a deep check at intervals.
type deepProgress struct {
	stream grpc.ServerStreamingServer[api.DeepCheckResponse]
	now    *api.DeepCheckProgress
	sent   time.Time
}

func (p *deepProgress) read(d health.DeepProgress) {
	p.now.Blobs, p.now.BlobsTotal = int64(d.Blobs), int64(d.BlobsTotal)
	p.now.Bytes, p.now.BytesTotal = d.Bytes, d.BytesTotal
	p.now.Snapshots, p.now.SnapshotsTotal = int64(d.Snapshots), int64(d.SnapshotsTotal)
	if time.Since(p.sent) >= deepEvery {
		_ = p.send() // the context ends if the caller has gone
	}
}

func (p *deepProgress) send() error {
	p.sent = time.Now()
	return p.stream.Send(&api.DeepCheckResponse{Progress: p.now})
}
