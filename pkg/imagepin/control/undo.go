package control

import (
	"context"
	"slices"

	"github.com/containerd/errdefs"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// UndoPin implements the API. The pin's current digest becomes the last one of its history, so a second undo returns to it.
func (s *Server) UndoPin(ctx context.Context, r *api.UndoPinRequest) (*api.SetPinResponse, error) {
	return guarded(ctx, s, "UndoPin", func(ctx context.Context) (*api.SetPinResponse, error) {
		scope, err := parseScope(r.GetScope())
		if err != nil {
			return nil, err
		}
		ref, err := imagepin.ParseReference(r.GetRef())
		if err != nil {
			return nil, err
		}
		pins := s.config.Pins.Scopes(ref.String())
		i := slices.IndexFunc(pins, func(p pin.Pin) bool { return p.Scope == scope })
		if i < 0 {
			return nil, &imagepin.Error{
				Reason: imagepin.UnknownPin, Ref: ref.String(), Class: errdefs.ErrNotFound,
				Message: "it has no pin in scope " + string(scope), Hint: "To list the pins of this node, run: imagepin pin ls",
			}
		}
		history := pins[i].History
		if len(history) == 0 {
			return nil, &imagepin.Error{
				Reason: imagepin.NoEarlierDigest, Ref: ref.String(), Class: errdefs.ErrFailedPrecondition,
				Message: "its pin in scope " + string(scope) + " has had no other digest",
				Hint:    "To pin it to another digest, run: imagepin pin set",
			}
		}
		p, previous, err := s.config.Decider.SetPin(ctx, decide.SetPin{
			Ref: ref, Scope: scope, Digest: history[len(history)-1].Digest, Force: true, Credential: credential(r.GetCredential()),
		})
		if err != nil {
			return nil, err
		}
		return &api.SetPinResponse{Pin: Pin(p), Previous: previous.String()}, nil
	})
}
