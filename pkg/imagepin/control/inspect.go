package control

import (
	"context"
	"slices"
	"strings"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Inspect implements the API.
func (s *Server) Inspect(ctx context.Context, r *api.InspectRequest) (*api.InspectResponse, error) {
	return guarded(ctx, s, "Inspect", func(context.Context) (*api.InspectResponse, error) {
		if err := imagepin.CheckReference(r.GetRef()); err != nil {
			return nil, err
		}
		if found := s.byID(r.GetRef()); len(found) > 0 {
			return s.inspectID(found), nil
		}
		name, err := s.refOf(r.GetRef())
		if err != nil {
			return nil, err
		}
		return s.inspectRef(name)
	})
}

// byID returns the images for an image ID or the beginning of one, and nothing for a reference on the node.
func (s *Server) byID(text string) []imagepin.Entry {
	digits := text[strings.Index(text, ":")+1:]
	if digits == "" || s.isRef(text) {
		return nil
	}
	return slices.DeleteFunc(s.config.Images.Find(text), func(e imagepin.Entry) bool {
		return !strings.HasPrefix(e.ImageID.Encoded(), digits)
	})
}

// inspectID returns the details of an image, with the pins of its references that hold it. The rule is that of its tag,
// if it has only one.
func (s *Server) inspectID(found []imagepin.Entry) *api.InspectResponse {
	resp := &api.InspectResponse{Ref: found[0].ImageID.String()}
	var refs, tags []string
	for _, e := range found {
		resp.Keys = append(resp.Keys, s.key(e))
		if slices.Contains(refs, e.Ref) {
			continue
		}
		refs = append(refs, e.Ref)
		if !strings.Contains(e.Ref, "@") {
			tags = append(tags, e.Ref)
		}
		for _, p := range s.config.Pins.Scopes(e.Ref) {
			if p.Root.Digest == e.Root.Digest {
				resp.Pins = append(resp.Pins, s.pin(p))
			}
		}
	}
	if len(tags) == 1 {
		resp.Rule = rule(s.config.Decider.Rule(tags[0]))
	}
	return resp
}

func (s *Server) inspectRef(name string) (*api.InspectResponse, error) {
	ref, err := imagepin.ParseReference(name)
	if err != nil {
		return nil, err
	}
	found := s.config.Images.Find(name)
	name = ref.String()
	resp := &api.InspectResponse{Ref: name, Rule: rule(s.config.Decider.Rule(name))}
	for _, e := range found {
		resp.Keys = append(resp.Keys, s.key(e))
	}
	for _, d := range s.config.Images.FindDamaged(name) {
		resp.Keys = append(resp.Keys, s.damagedKey(d))
	}
	for _, p := range s.config.Pins.Scopes(name) {
		resp.Pins = append(resp.Pins, s.pin(p))
	}
	if len(resp.Keys) == 0 && len(resp.Pins) == 0 {
		return nil, unknownImage(name)
	}
	return resp, nil
}
