package control

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// given is what a digest of the request is.
const given = "given"

// digestsToCompare returns the digests that a request compares.
func (s *Server) digestsToCompare(ctx context.Context, r *api.DiffRequest) (comparison, error) {
	ref, err := s.parseRef(r.GetRef())
	if err != nil {
		return comparison{}, err
	}
	c := comparison{ref: ref}
	named, byDigest := s.namedDigest(ref, r.GetRef())
	if _, canonical := ref.(reference.Canonical); canonical && r.GetDigest() == "" {
		return c, &imagepin.Error{
			Reason: imagepin.InvalidRequest, Ref: ref.String(), Class: errdefs.ErrInvalidArgument, Message: "it has a digest, and there is none to compare with",
			Hint: "Add a second digest, or leave out this one.",
		}
	}
	if byDigest && r.GetDigest() != "" {
		c.from = side{named, given}
	} else if c, err = s.currentSides(ctx, c, r); err != nil || r.GetDigest() == "" {
		return c, err
	}
	d, err := s.digestOf(ref.Name(), r.GetDigest())
	c.to = side{d, given}
	return c, err
}

// namedDigest returns the digest that a text names, which is a reference by digest, or a digest or an image ID that
// belongs to ref.
func (s *Server) namedDigest(ref reference.Named, text string) (digest.Digest, bool) {
	if by, ok := ref.(reference.Canonical); ok {
		return by.Digest(), true
	}
	if digestPrefix(text) == "" || s.isRef(text) {
		return "", false
	}
	if d, err := s.digestOf(ref.Name(), text); err == nil {
		return d, true
	}
	for _, e := range s.byID(text) {
		if e.Ref == ref.String() {
			return e.Root.Digest, true
		}
	}
	return "", false
}

// currentSides sets the digest that a reference has now, and, unless the request has a digest, the one to compare it with.
func (s *Server) currentSides(ctx context.Context, c comparison, r *api.DiffRequest) (comparison, error) {
	p, pinned, err := s.pinToCompare(c.ref.String(), r.GetScope())
	if err != nil {
		return c, err
	}
	switch {
	case !pinned:
		return s.unpinnedSides(ctx, c, r)
	case r.GetDigest() != "":
		c.from = side{p.Root.Digest, pinnedIn(p)}
	case p.Drift != nil:
		c.from = side{p.Root.Digest, pinnedIn(p)}
		c.to = side{p.Drift.Digest, "of the tag in the registry, which has moved"}
	case len(p.History) > 0:
		c.from = side{p.History[len(p.History)-1].Digest, "that the pin had before"}
		c.to = side{p.Root.Digest, pinnedIn(p)}
	default:
		return c, &imagepin.Error{
			Reason: imagepin.NoEarlierDigest, Ref: c.ref.String(), Class: errdefs.ErrFailedPrecondition,
			Message: fmt.Sprintf("its pin in scope %s has had no other digest, and its tag is not known to have moved", p.Scope),
			Hint:    "Add the digest to compare with, for example that of the registry: imagepin resolve " + c.ref.String(),
		}
	}
	return c, nil
}

func pinnedIn(p pin.Pin) string { return "pinned in scope " + string(p.Scope) }

// pinToCompare returns the pin of a scope. Without a scope it is that of the node, or the only one.
func (s *Server) pinToCompare(ref, scope string) (_ pin.Pin, pinned bool, _ error) {
	all := s.config.Pins.Scopes(ref)
	if scope == "" && len(all) == 0 {
		return pin.Pin{}, false, nil
	}
	if scope == "" && len(all) == 1 {
		return all[0], true, nil
	}
	parsed := policy.NodeScope
	if scope != "" {
		var err error
		if parsed, err = parseScope(scope); err != nil {
			return pin.Pin{}, false, err
		}
	}
	if i := slices.IndexFunc(all, func(p pin.Pin) bool { return p.Scope == parsed }); i >= 0 {
		return all[i], true, nil
	}
	if scope != "" {
		return pin.Pin{}, false, s.nameScopes(pin.Unknown(pin.ID{Scope: parsed, Ref: ref}), ref)
	}
	var scopes []string
	for _, p := range all {
		scopes = append(scopes, string(p.Scope))
	}
	slices.Sort(scopes)
	return pin.Pin{}, false, candidates("reference", ref, errors.New("it has pins in several scopes, select one with --scope"), "They are", scopes)
}

// unpinnedSides sets the digest of a reference on the node, and that of its tag in the registry.
func (s *Server) unpinnedSides(ctx context.Context, c comparison, r *api.DiffRequest) (comparison, error) {
	name := c.ref.String()
	for _, e := range s.config.Images.Find(name) {
		if e.Ref == name && (c.from.digest == "" || e.Target == s.config.Runtimes().Default().Target) {
			c.from = side{e.Root.Digest, "on this node"}
		}
	}
	if c.from.digest == "" && r.GetDigest() == "" {
		return c, unknownImage(name)
	}
	if c.from.digest != "" && r.GetDigest() != "" {
		return c, nil
	}
	resolved, err := s.config.Decider.Resolve(ctx, c.ref, Credential(r.GetCredential()))
	if err != nil {
		return c, err
	}
	tag := side{resolved.Root.Digest, "of the tag in the registry"}
	if c.from.digest == "" {
		c.from = tag
	} else {
		c.to = tag
	}
	return c, nil
}
