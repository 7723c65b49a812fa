package control

import (
	"context"

	"github.com/containerd/containerd/v2/pkg/namespaces"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// Uninstall implements the API.
func (s *Server) Uninstall(ctx context.Context, r *api.UninstallRequest) (*api.UninstallResponse, error) {
	return s.config.Uninstall(namespaces.WithNamespace(ctx, s.config.Namespace), r.GetDryRun())
}
