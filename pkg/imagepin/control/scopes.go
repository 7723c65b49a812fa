package control

import (
	"errors"
	"strings"

	"github.com/opencontainers/go-digest"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// pinSet returns the response for a pin that was made or moved.
func (s *Server) pinSet(p pin.Pin, previous digest.Digest) *api.SetPinResponse {
	resp := &api.SetPinResponse{Pin: Pin(p), Previous: previous.String()}
	resp.Others, resp.OtherScopes = s.otherScopes(p.ID)
	return resp
}

// otherScopes returns in how many other scopes a reference is pinned, and the first of them.
func (s *Server) otherScopes(id pin.ID) (n int64, first []string) {
	for _, p := range s.config.Pins.Scopes(id.Ref) {
		if p.Scope == id.Scope {
			continue
		}
		if n++; n <= maxCandidates {
			first = append(first, string(p.Scope))
		}
	}
	return n, first
}

// nameScopes adds to an [imagepin.UnknownPin] error the scopes in which the reference is pinned.
func (s *Server) nameScopes(err error, ref string) error {
	var e *imagepin.Error
	if !errors.As(err, &e) || e.Reason != imagepin.UnknownPin {
		return err
	}
	if n, scopes := s.otherScopes(pin.ID{Ref: ref}); n > 0 {
		e.Hint = "It is pinned in other scopes, select one with --scope: " + strings.Join(scopes, ", ")
		if more := n - int64(len(scopes)); more > 0 {
			e.Hint += ", …"
		}
	}
	return err
}
