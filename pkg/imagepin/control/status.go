package control

import (
	"context"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// Status implements the API. It does not wait for the index, so that it also answers during a start.
func (s *Server) Status(ctx context.Context, _ *api.StatusRequest) (*api.StatusResponse, error) {
	return s.config.Status(ctx), nil
}
