package control

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// Locks has the calls for locks. [fleet.Server] implements it. send sends messages to the caller until the call ends.
type Locks interface {
	Apply(ctx context.Context, r *api.ApplyRequest, send func(*api.ApplyResponse) error) error
	CancelApply(ctx context.Context, r *api.CancelApplyRequest) (*api.CancelApplyResponse, error)
	Rollback(ctx context.Context, r *api.RollbackRequest, send func(*api.ApplyResponse) error) error
	RemoveLock(ctx context.Context, r *api.RemoveLockRequest) (*api.RemoveLockResponse, error)
	LockStatus(ctx context.Context, r *api.LockStatusRequest) (*api.LockStatusResponse, error)
}

// locking runs a call for locks. It fails with ErrNotImplemented in a build without locks.
func locking[T any](ctx context.Context, s *Server, method string, call func(context.Context, Locks) (T, error)) (T, error) {
	return guarded(ctx, s, method, func(ctx context.Context) (resp T, _ error) {
		if s.config.Locks == nil {
			return resp, fmt.Errorf("this build of imagepin has no locks: %w", errdefs.ErrNotImplemented)
		}
		return call(ctx, s.config.Locks)
	})
}

// Apply implements the API.
func (s *Server) Apply(r *api.ApplyRequest, stream grpc.ServerStreamingServer[api.ApplyResponse]) error {
	_, err := locking(stream.Context(), s, "Apply", func(ctx context.Context, l Locks) (struct{}, error) {
		return struct{}{}, l.Apply(ctx, r, stream.Send)
	})
	return err
}

// Rollback implements the API.
func (s *Server) Rollback(r *api.RollbackRequest, stream grpc.ServerStreamingServer[api.ApplyResponse]) error {
	_, err := locking(stream.Context(), s, "Rollback", func(ctx context.Context, l Locks) (struct{}, error) {
		return struct{}{}, l.Rollback(ctx, r, stream.Send)
	})
	return err
}

// CancelApply implements the API.
func (s *Server) CancelApply(ctx context.Context, r *api.CancelApplyRequest) (*api.CancelApplyResponse, error) {
	return locking(ctx, s, "CancelApply", func(ctx context.Context, l Locks) (*api.CancelApplyResponse, error) { return l.CancelApply(ctx, r) })
}

// RemoveLock implements the API.
func (s *Server) RemoveLock(ctx context.Context, r *api.RemoveLockRequest) (*api.RemoveLockResponse, error) {
	return locking(ctx, s, "RemoveLock", func(ctx context.Context, l Locks) (*api.RemoveLockResponse, error) { return l.RemoveLock(ctx, r) })
}

// LockStatus implements the API.
func (s *Server) LockStatus(ctx context.Context, r *api.LockStatusRequest) (*api.LockStatusResponse, error) {
	return locking(ctx, s, "LockStatus", func(ctx context.Context, l Locks) (*api.LockStatusResponse, error) { return l.LockStatus(ctx, r) })
}
