package control

import (
	"context"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs/pkg/errgrpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// Uninstall implements the API.
func (s *Server) Uninstall(ctx context.Context, r *api.UninstallRequest) (*api.UninstallResponse, error) {
	if err := s.checkNamespace(ctx); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return s.config.Uninstall(namespaces.WithNamespace(ctx, s.config.Namespace), r.GetDryRun())
}
