package control

import (
	"context"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/version"
)

// Version implements the API. It also answers before the index is built, and after an uninstall.
func (s *Server) Version(context.Context, *api.VersionRequest) (*api.VersionResponse, error) {
	return &api.VersionResponse{Version: version.Version}, nil
}
