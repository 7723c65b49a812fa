package control

import (
	"context"

	"github.com/distribution/reference"
	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/pieces"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// listPins lists the pins that match a filter.
func (s *Server) listPins(r *api.PinsRequest) (*api.PinsResponse, error) {
	pins, err := s.selectPins(r)
	resp := &api.PinsResponse{}
	for _, p := range pins {
		resp.Pins = append(resp.Pins, s.pin(p))
	}
	return resp, err
}

// selectPins returns the pins that match a filter.
func (s *Server) selectPins(r *api.PinsRequest) (pins []pin.Pin, _ error) {
	matches, err := matcher(r.GetRefGlob())
	if err != nil {
		return nil, err
	}
	scope, err := parseAnyScope(r.GetScope())
	if err != nil {
		return nil, err
	}
	for _, p := range s.config.Pins.List() {
		if matches(p.Ref) && (scope == "" || scope == p.Scope) {
			pins = append(pins, p)
		}
	}
	return pins, nil
}

// Pins implements the API.
func (s *Server) Pins(ctx context.Context, r *api.PinsRequest) (*api.PinsResponse, error) {
	return guarded(ctx, s, "Pins", func(context.Context) (*api.PinsResponse, error) { return s.listPins(r) })
}

// StreamPins implements the API.
func (s *Server) StreamPins(r *api.PinsRequest, stream grpc.ServerStreamingServer[api.PinsResponse]) error {
	return s.guardedStream(stream.Context(), "StreamPins", func(context.Context) error { return s.sendPins(r, stream) })
}

func (s *Server) sendPins(r *api.PinsRequest, stream grpc.ServerStreamingServer[api.PinsResponse]) error {
	all, err := s.listPins(r)
	for piece := range pieces.Split(all.GetPins()) {
		if err := stream.Send(&api.PinsResponse{Pins: piece}); err != nil {
			return err
		}
	}
	return err
}

// CheckPins implements the API.
func (s *Server) CheckPins(r *api.PinsRequest, stream grpc.ServerStreamingServer[api.PinsResponse]) error {
	return s.guardedStream(stream.Context(), "CheckPins", func(ctx context.Context) error {
		pins, err := s.selectPins(r)
		if err != nil {
			return err
		}
		if err := s.config.Lookups.Check(ctx, pins); err != nil {
			return err
		}
		return s.sendPins(r, stream)
	})
}

// parsePin parses the scope and the reference of a request for one pin.
func (s *Server) parsePin(r interface {
	GetScope() string
	GetRef() string
}) (ref reference.Named, scope policy.Scope, err error) {
	if scope, err = parseScope(r.GetScope()); err == nil {
		ref, err = s.parseRef(r.GetRef())
	}
	return ref, scope, err
}

// SetPin implements the API.
func (s *Server) SetPin(ctx context.Context, r *api.SetPinRequest) (*api.SetPinResponse, error) {
	return guarded(ctx, s, "SetPin", func(ctx context.Context) (*api.SetPinResponse, error) {
		ref, scope, err := s.parsePin(r)
		if err != nil {
			return nil, err
		}
		d, err := s.digestOf(ref.Name(), r.GetDigest())
		if err != nil {
			return nil, err
		}
		p, previous, err := s.config.Decider.SetPin(ctx, decide.SetPin{
			Ref: ref, Scope: scope, Digest: d, Retain: r.Retain, Credential: Credential(r.GetCredential()), Force: r.GetForce(),
		})
		if err != nil {
			return nil, err
		}
		return s.pinSet(p, previous), nil
	})
}

// RemovePin implements the API.
func (s *Server) RemovePin(ctx context.Context, r *api.RemovePinRequest) (*api.RemovePinResponse, error) {
	return guarded(ctx, s, "RemovePin", func(ctx context.Context) (*api.RemovePinResponse, error) {
		ref, scope, err := s.parsePin(r)
		if err != nil {
			return nil, err
		}
		p, err := s.config.Pins.Remove(ctx, pin.ID{Scope: scope, Ref: ref.String()})
		if err != nil {
			return nil, s.nameScopes(err, ref.String())
		}
		resp := &api.RemovePinResponse{Pin: Pin(p)}
		resp.Others, resp.OtherScopes = s.otherScopes(p.ID)
		return resp, nil
	})
}

// Refresh implements the API.
func (s *Server) Refresh(ctx context.Context, r *api.RefreshRequest) (*api.RefreshResponse, error) {
	return guarded(ctx, s, "Refresh", func(ctx context.Context) (*api.RefreshResponse, error) {
		scope, err := parseAnyScope(r.GetScope())
		if err != nil {
			return nil, err
		}
		ref, err := s.refOf(r.GetRef())
		if err != nil {
			return nil, err
		}
		done, err := s.config.Puller.Refresh(ctx, ref, scope, Credential(r.GetCredential()))
		if err != nil {
			return nil, err
		}
		resp := &api.RefreshResponse{Ref: done.Ref.String(), Registry: descriptor(done.Registry), Changed: done.Changed()}
		for _, p := range done.Pins {
			resp.Refreshed = append(resp.Refreshed, &api.Refreshed{
				Scope: string(p.ID.Scope), Before: p.Before.String(), After: p.After.String(),
			})
		}
		for _, t := range done.Targets {
			a := &api.Refreshed{Target: Target(t.Target), Before: t.Before.String(), After: t.After.String()}
			if t.Err != nil {
				a.Error = t.Err.Error()
			}
			resp.Refreshed = append(resp.Refreshed, a)
		}
		return resp, nil
	})
}
