package control

import (
	"context"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// UndoPin implements the API.
func (s *Server) UndoPin(ctx context.Context, r *api.UndoPinRequest) (*api.SetPinResponse, error) {
	return guarded(ctx, s, "UndoPin", func(ctx context.Context) (*api.SetPinResponse, error) {
		ref, scope, err := s.parsePin(r)
		if err != nil {
			return nil, err
		}
		p, previous, err := s.config.Decider.UndoPin(ctx, ref, scope, Credential(r.GetCredential()))
		if err != nil {
			return nil, s.nameScopes(err, ref.String())
		}
		return s.pinSet(p, previous), nil
	})
}
