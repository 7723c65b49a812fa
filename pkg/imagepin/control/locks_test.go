package control

import (
	"context"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// stream is a stream of a caller that receives nothing.
type stream struct {
	grpc.ServerStreamingServer[api.ApplyResponse]
	ctx context.Context
}

func (s stream) Context() context.Context { return s.ctx }

// TestWithoutLocks answers ErrNotImplemented in a build without locks.
func TestWithoutLocks(t *testing.T) {
	s := New(Config{Namespace: "k8s.io", Guard: func(_ context.Context, _ string, call func() error) error { return call() }})
	ctx := t.Context()
	_, cancel := s.CancelApply(ctx, &api.CancelApplyRequest{})
	_, remove := s.RemoveLock(ctx, &api.RemoveLockRequest{})
	_, status := s.LockStatus(ctx, &api.LockStatusRequest{})
	for method, err := range map[string]error{
		"Apply": s.Apply(&api.ApplyRequest{}, stream{ctx: ctx}), "Rollback": s.Rollback(&api.RollbackRequest{}, stream{ctx: ctx}),
		"CancelApply": cancel, "RemoveLock": remove, "LockStatus": status,
	} {
		if !errdefs.IsNotImplemented(err) {
			t.Errorf("%s: got %v, want ErrNotImplemented", method, err)
		}
	}
}
