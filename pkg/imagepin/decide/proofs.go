package decide

import (
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// Proofs are notes that a registry has accepted a credential, see [resolve.Prover].
type Proofs interface {
	// Of returns the proof that a credential is accepted for a digest of ref's repository.
	Of(ref reference.Named, c resolve.Credential, root digest.Digest) string
	// Accepted reports whether a proof on the node lets a credential, or no credential at all, have a digest.
	Accepted(ref reference.Named, c resolve.Credential, root digest.Digest) bool
}

// NodeProofs are the proofs on the records of images and of pins.
type NodeProofs struct {
	Prover Prover
	On     []Noted
}

// Prover derives proofs. [resolve.Resolver] does.
type Prover interface {
	Proof(ref reference.Named, c resolve.Credential, root digest.Digest) string
	// Proofs returns all that let a credential have a digest.
	Proofs(ref reference.Named, c resolve.Credential, root digest.Digest) []string
}

// Noted is where proofs are noted.
type Noted interface {
	// HasProof reports whether one of some proofs is noted.
	HasProof(proofs ...string) bool
}

// Of implements [Proofs].
func (n NodeProofs) Of(ref reference.Named, c resolve.Credential, root digest.Digest) string {
	return n.Prover.Proof(ref, c, root)
}

// Accepted implements [Proofs].
func (n NodeProofs) Accepted(ref reference.Named, c resolve.Credential, root digest.Digest) bool {
	proofs := n.Prover.Proofs(ref, c, root)
	for _, on := range n.On {
		if on.HasProof(proofs...) {
			return true
		}
	}
	return false
}
