package control

import (
	"context"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// Status implements the API. It does not wait for the index, so that it also answers during a start.
func (s *Server) Status(ctx context.Context, _ *api.StatusRequest) (resp *api.StatusResponse, err error) {
	err = s.config.Recover(ctx, "Status", func() error {
		if err := s.checkNamespace(ctx); err != nil {
			return err
		}
		resp = s.config.Status(ctx)
		return nil
	})
	return resp, err
}
