package decide

import (
	"context"

	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// Registry answers which digest a reference means. [resolve.Resolver] is one.
type Registry interface {
	// Resolve asks for a tag or a digest.
	Resolve(ctx context.Context, ref reference.Named, c resolve.Credential) (resolve.Resolved, error)
	// Authorize asks whether a credential may have a digest.
	Authorize(ctx context.Context, ref reference.Canonical, c resolve.Credential) (resolve.Resolved, error)
}

// ask asks the registry for a reference.
func (d *Decider) ask(ctx context.Context, q Question, ref reference.Named, why string) (Verdict, error) {
	r, err := d.registry.Resolve(ctx, ref, q.Credential)
	return d.answer(q, r, err, why)
}

// authorize takes an image that is on the node. Where the caller's credential has no proof, the registry is asked for
// the digest, and has to accept the credential.
func (d *Decider) authorize(ctx context.Context, q Question, local imagepin.Entry, why string) (Verdict, error) {
	if d.mayHave(q, local) {
		return q.verdict(local.Root, why), nil
	}
	byDigest, err := reference.WithDigest(reference.TrimNamed(q.Ref), local.Root.Digest)
	if err != nil {
		return Verdict{}, err
	}
	r, err := d.registry.Authorize(ctx, byDigest, q.Credential)
	v, err := d.answer(q, r, err, why)
	v.Registry = nil // it was not asked what the tag means
	return v, err
}

// answer makes a verdict of what a registry answered. The proof is that of a host that may resolve.
func (d *Decider) answer(q Question, r resolve.Resolved, err error, why string) (Verdict, error) {
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
