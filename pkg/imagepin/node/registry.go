package node

import (
	"context"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// registry accesses registries with the current configuration.
type registry struct{ n *Node }

func (r registry) now() *resolve.Resolver { return r.n.active.Load().resolver }

// Resolve implements [decide.Registry].
func (r registry) Resolve(ctx context.Context, ref reference.Named, c resolve.Credential) (resolve.Resolved, error) {
	return r.now().Resolve(ctx, ref, c)
}

// ResolveAtOrigin implements [decide.Registry].
func (r registry) ResolveAtOrigin(ctx context.Context, ref reference.Named, c resolve.Credential) (resolve.Resolved, error) {
	return r.now().ResolveAtOrigin(ctx, ref, c)
}

// ResolveNow implements [decide.Registry].
func (r registry) ResolveNow(ctx context.Context, ref reference.Named, c resolve.Credential, origin bool) (resolve.Resolved, error) {
	return r.now().ResolveNow(ctx, ref, c, origin)
}

// Authorize implements [decide.Registry].
func (r registry) Authorize(ctx context.Context, ref reference.Canonical, c resolve.Credential) (resolve.Resolved, error) {
	return r.now().Authorize(ctx, ref, c)
}

// LookUp implements [lookup.Registry]. It resolves a tag where a pull does.
func (r registry) LookUp(ctx context.Context, ref reference.Named) (digest.Digest, error) {
	_, digested := ref.(reference.Digested)
	if !digested && r.n.policy().Rule(ref.String()).ResolveAt == policy.ResolveAtOrigin {
		return r.now().LookUpAtOrigin(ctx, ref)
	}
	return r.now().LookUp(ctx, ref)
}

// Session implements [pull.Sessions].
func (r registry) Session(ref reference.Named, c resolve.Credential) *resolve.Session {
	return r.now().Session(ref, c)
}

// Proof implements [decide.Prover].
func (r registry) Proof(ref reference.Named, c resolve.Credential, root digest.Digest) string {
	return r.now().Proof(ref, c, root)
}

// Proofs implements [decide.Prover].
func (r registry) Proofs(ref reference.Named, c resolve.Credential, root digest.Digest) []string {
	return r.now().Proofs(ref, c, root)
}
