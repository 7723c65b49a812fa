package control

import (
	"context"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// UndoPin implements the API.
func (s *Server) UndoPin(ctx context.Context, r *api.UndoPinRequest) (*api.SetPinResponse, error) {
	return guarded(ctx, s, "UndoPin", func(ctx context.Context) (*api.SetPinResponse, error) {
		scope, err := parseScope(r.GetScope())
		if err != nil {
			return nil, err
		}
		ref, err := s.parseRef(r.GetRef())
		if err != nil {
			return nil, err
		}
		p, previous, err := s.config.Decider.UndoPin(ctx, ref, scope, credential(r.GetCredential()))
		if err != nil {
			return nil, err
		}
		return &api.SetPinResponse{Pin: Pin(p), Previous: previous.String()}, nil
	})
}
