package control

import (
	"context"
	"slices"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/compare"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Diff implements the API.
func (s *Server) Diff(ctx context.Context, r *api.DiffRequest) (*api.DiffResponse, error) {
	return guarded(ctx, s, "Diff", func(ctx context.Context) (*api.DiffResponse, error) {
		d, err := s.digestsToCompare(ctx, r)
		if err != nil {
			return nil, err
		}
		reader := &compare.Reader{Content: s.config.Content, Registry: s.config.Registry, Repository: d.ref, Credential: Credential(r.GetCredential())}
		from, err := reader.Root(ctx, d.from.digest)
		if err != nil {
			return nil, err
		}
		to, err := reader.Root(ctx, d.to.digest)
		if err != nil {
			return nil, err
		}
		platforms, err := reader.Compare(ctx, from, to, wantedPlatforms(s.config.Runtimes(), r.GetAllPlatforms()))
		if err != nil {
			return nil, err
		}
		resp := &api.DiffResponse{Ref: d.ref.String(), From: descriptor(from), FromIs: d.from.is, To: descriptor(to), ToIs: d.to.is}
		for _, p := range platforms {
			resp.Platforms = append(resp.Platforms, platformDiff(p))
		}
		return resp, nil
	})
}

// wantedPlatforms accepts the platforms of the runtime handlers, or all.
func wantedPlatforms(runtimes *runtimeplatform.Set, all bool) func(ocispec.Platform) bool {
	var matching []runtimeplatform.Runtime
	for _, t := range runtimes.Targets() {
		if rt, ok := runtimes.ForTarget(t); ok {
			matching = append(matching, rt)
		}
	}
	return func(p ocispec.Platform) bool {
		return all || slices.ContainsFunc(matching, func(rt runtimeplatform.Runtime) bool { return rt.Matcher.Match(p) })
	}
}

func platformDiff(p compare.Platform) *api.PlatformDiff {
	a := &api.PlatformDiff{
		Platform: p.Name, Change: string(p.Change), Compared: p.Compared, FromManifest: p.From.String(), ToManifest: p.To.String(),
		FromSize: p.FromSize, ToSize: p.ToSize,
	}
	for _, l := range p.Layers {
		a.Layers = append(a.Layers, &api.LayerDiff{Change: string(l.Change), Digest: l.Digest.String(), Size: l.Size})
	}
	for _, f := range p.Config {
		a.Config = append(a.Config, &api.ConfigDiff{Field: f.Name, From: f.From, To: f.To})
	}
	return a
}

// side is a digest to compare, and what it is as text.
type side struct {
	digest digest.Digest
	is     string
}

// comparison are the digests to compare.
type comparison struct {
	ref      reference.Named
	from, to side
}
