package decide

import (
	"cmp"
	"context"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// Registry resolves references. [resolve.Resolver] implements it.
type Registry interface {
	// Resolve resolves a tag or a digest.
	Resolve(ctx context.Context, ref reference.Named, c resolve.Credential) (resolve.Resolved, error)
	// ResolveAtOrigin resolves a tag at the origin of its registry only.
	ResolveAtOrigin(ctx context.Context, ref reference.Named, c resolve.Credential) (resolve.Resolved, error)
	// ResolveNow is Resolve, or ResolveAtOrigin, and does not join a call that began before.
	ResolveNow(ctx context.Context, ref reference.Named, c resolve.Credential, origin bool) (resolve.Resolved, error)
	// Authorize checks whether a credential may pull a digest.
	Authorize(ctx context.Context, ref reference.Canonical, c resolve.Credential) (resolve.Resolved, error)
}

// resolve resolves a reference at the registry.
func (d *Decider) resolve(ctx context.Context, q Request, ref reference.Named, why string) (Verdict, error) {
	r, err := d.resolveAt(ctx, ref, q.Credential, cmp.Or(q.Policy.ResolveAt, d.policy().Rule(ref.String()).ResolveAt))
	return d.answer(q, r, err, why)
}

// resolveTag resolves the tag of a request at the registry. local is the image on the node, if it is here.
func (d *Decider) resolveTag(ctx context.Context, q Request, pinned *pin.Pin, local imagepin.Entry, here bool) (Verdict, error) {
	const why = "resolved by the registry"
	if q.New && pinned == nil && here && q.Policy.Behavior == policy.Default {
		if _, ok := d.mayHave(q, local); ok {
			return d.resolveNew(ctx, q, why)
		}
	}
	return d.resolve(ctx, q, q.Ref, why)
}

// Resolve resolves a reference at the registry hosts that its rule selects. It fails as [resolve.Resolver.Resolve] does.
func (d *Decider) Resolve(ctx context.Context, ref reference.Named, c resolve.Credential) (resolve.Resolved, error) {
	return d.resolveAt(ctx, ref, c, d.policy().Rule(ref.String()).ResolveAt)
}

func (d *Decider) resolveAt(ctx context.Context, ref reference.Named, c resolve.Credential, at policy.ResolveAt) (resolve.Resolved, error) {
	if _, digested := ref.(reference.Digested); !digested && at == policy.ResolveAtOrigin {
		return d.registry.ResolveAtOrigin(ctx, ref, c)
	}
	return d.registry.Resolve(ctx, ref, c)
}

// authorize returns the verdict for an image on the node. If the caller's credential has no proof, the registry must
// accept it for the digest.
func (d *Decider) authorize(ctx context.Context, q Request, local imagepin.Entry, why string) (Verdict, error) {
	if used, ok := d.mayHave(q, local); ok {
		return q.proved(local.Root, used, why), nil
	}
	return d.authorizeDigest(ctx, q, local.Root.Digest, why)
}

// authorizeDigest returns the verdict for a digest of the request's repository. A host with the capability resolve must
// accept the caller's credential for it. Mirrors that may only pull do not decide who may use the image of a tag.
func (d *Decider) authorizeDigest(ctx context.Context, q Request, root digest.Digest, why string) (Verdict, error) {
	byDigest, err := reference.WithDigest(reference.TrimNamed(q.Ref), root)
	if err != nil {
		return Verdict{}, err
	}
	r, err := d.registry.Authorize(ctx, byDigest, q.Credential)
	v, err := d.answer(q, r, err, why)
	v.Registry = nil // this request did not resolve the tag
	return v, err
}

// answer converts an answer of the registry to a verdict. Only an answer of a host with the capability resolve is a
// proof.
func (d *Decider) answer(q Request, r resolve.Resolved, err error, why string) (Verdict, error) {
	if err != nil {
		return Verdict{RegistryError: err}, err
	}
	v := q.verdict(r.Root, why)
	v.Registry, v.Host, v.Session = &r.Root, r.Host, r.Session
	if r.Proves {
		v.Proof = d.proofs.Of(q.Ref, q.Credential, r.Root.Digest)
	}
	return v, nil
}
