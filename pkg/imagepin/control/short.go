package control

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// maxCandidates is how many candidates an error for a short digest lists.
const maxCandidates = 8

// shortDigest matches a digest of which digits at the end may be missing. The shortest one has the 12 digits that tables
// print. Without an algorithm it is SHA-256.
var shortDigest = regexp.MustCompile(`^([a-z0-9]+:)?[0-9a-f]{12,128}$`)

// digestPrefix returns the beginning of the digests that a text can mean; "" if the text is neither a digest nor a short
// one.
func digestPrefix(text string) string {
	switch {
	case !shortDigest.MatchString(text):
		return ""
	case strings.Contains(text, ":"):
		return text
	}
	return digest.Canonical.String() + ":" + text
}

// digestOf returns the digest of a repository for a text of an operator: a digest, or the beginning of one that the node
// knows from images and pins.
func (s *Server) digestOf(repository, text string) (digest.Digest, error) {
	d, invalid := digest.Parse(text)
	if invalid == nil {
		return d, nil
	}
	prefix := digestPrefix(text)
	if prefix == "" {
		return "", imagepin.Invalid("digest", text, invalid)
	}
	known := make(map[string]bool)
	s.eachKnown(func(ref string, _ digest.Digest, digests ...digest.Digest) {
		if imagepin.InRepository(ref, repository) {
			for _, d := range digests {
				known[d.String()] = true
			}
		}
	})
	all := slices.Sorted(maps.Keys(known))
	found := slices.DeleteFunc(slices.Clone(all), func(d string) bool { return !strings.HasPrefix(d, prefix) })
	switch len(found) {
	case 1:
		return digest.Digest(found[0]), nil
	case 0:
		return "", candidates("digest", text, errors.New("no digest of "+repository+" on this node begins with it"), "Digests of "+repository+" on this node", all)
	}
	return "", candidates("digest", text, errors.New("several digests begin with it"), "They are", found)
}

// parseRef parses a reference of an operator. It can also be a digest or the beginning of one that belongs to one
// reference on the node, or a reference with such a digest after the "@".
func (s *Server) parseRef(text string) (reference.Named, error) {
	name, err := s.refOf(text)
	if err != nil {
		return nil, err
	}
	return imagepin.ParseReference(name)
}

func (s *Server) refOf(text string) (string, error) {
	if err := imagepin.CheckReference(text); err != nil {
		return "", err
	}
	if name, short, ok := strings.Cut(text, "@"); ok && digestPrefix(short) != "" {
		return s.withDigest(name, short)
	}
	prefix := digestPrefix(text)
	if prefix == "" || s.isRef(text) {
		return text, nil
	}
	// Digests of images and pins; references by digest count only if there is no other.
	refs, digested := make(map[string]bool), make(map[string]bool)
	s.eachKnown(func(ref string, id digest.Digest, digests ...digest.Digest) {
		if !slices.ContainsFunc(append(digests, id), func(d digest.Digest) bool { return strings.HasPrefix(d.String(), prefix) }) {
			return
		}
		if strings.Contains(ref, "@") {
			digested[ref] = true
		} else {
			refs[ref] = true
		}
	})
	if len(refs) == 0 {
		refs = digested
	}
	found := slices.Sorted(maps.Keys(refs))
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", unknownImage(text)
	}
	return "", candidates("reference", text, errors.New("it is a digest of several references"), "They are", found)
}

// withDigest completes the digest of a reference.
func (s *Server) withDigest(name, short string) (string, error) {
	named, err := imagepin.ParseReference(name)
	if err != nil {
		return "", err
	}
	d, err := s.digestOf(named.Name(), short)
	return named.Name() + "@" + d.String(), err
}

// isRef reports whether a text is a reference that the node has or that is pinned.
func (s *Server) isRef(text string) bool {
	ref, err := imagepin.ParseReference(text)
	if err != nil {
		return false
	}
	name := ref.String()
	found := s.config.Images.Find(name)
	return len(found) > 0 && found[0].Ref == name || len(s.config.Pins.Scopes(name)) > 0
}

// eachKnown calls visit with the image ID and the digests of each image, and with the digests of each pin of the node.
func (s *Server) eachKnown(visit func(ref string, id digest.Digest, digests ...digest.Digest)) {
	for _, img := range s.config.Images.Images() {
		for _, e := range img.Entries {
			visit(e.Ref, e.ImageID, e.Root.Digest, e.Manifest)
		}
	}
	for _, p := range s.config.Pins.List() {
		digests := []digest.Digest{p.Root.Digest}
		for _, h := range p.History {
			digests = append(digests, h.Digest)
		}
		if p.Drift != nil {
			digests = append(digests, p.Drift.Digest)
		}
		visit(p.Ref, "", digests...)
	}
}

// candidates returns an InvalidRequest error that lists what a text can mean.
func candidates(what, text string, why error, intro string, all []string) error {
	e := &imagepin.Error{
		Reason: imagepin.InvalidRequest, Class: errdefs.ErrInvalidArgument, Err: why, Message: fmt.Sprintf("%s %q", what, text),
	}
	if len(all) > 0 {
		e.Hint = intro + ": " + strings.Join(all[:min(len(all), maxCandidates)], ", ")
	}
	if more := len(all) - maxCandidates; more > 0 {
		e.Hint += fmt.Sprintf(" and %d more", more)
	}
	return e
}

func unknownImage(name string) error {
	return &imagepin.Error{
		Reason: imagepin.UnknownImage, Ref: name, Class: errdefs.ErrNotFound,
		Message: "not on this node, and not pinned", Hint: "To list the images of this node, run: imagepin images",
	}
}
