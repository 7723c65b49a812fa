package decide

import (
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// Proofs finds proofs. A proof records that a registry accepted a credential for a digest, see [resolve.Prover].
type Proofs interface {
	// Of returns the proof of a credential for a digest of ref's repository.
	Of(ref reference.Named, c resolve.Credential, root digest.Digest) string
	// Accepted returns the proof that the node has for a digest, of this credential or of a pull without credentials.
	Accepted(ref reference.Named, c resolve.Credential, root digest.Digest) (proof string, ok bool)
}

// NodeProofs finds the proofs on the records of images and of pins.
type NodeProofs struct {
	Prover Prover
	Stores []ProofStore
}

// Prover derives proofs. [resolve.Resolver] implements it.
type Prover interface {
	Proof(ref reference.Named, c resolve.Credential, root digest.Digest) string
	// Proofs returns all proofs that allow a credential to use a digest.
	Proofs(ref reference.Named, c resolve.Credential, root digest.Digest) []string
}

// ProofStore is a place where proofs are recorded.
type ProofStore interface {
	// HasProof reports whether one of the proofs is recorded.
	HasProof(proofs ...string) bool
}

// Of implements [Proofs].
func (n NodeProofs) Of(ref reference.Named, c resolve.Credential, root digest.Digest) string {
	return n.Prover.Proof(ref, c, root)
}

// Accepted implements [Proofs].
func (n NodeProofs) Accepted(ref reference.Named, c resolve.Credential, root digest.Digest) (proof string, ok bool) {
	for _, proof := range n.Prover.Proofs(ref, c, root) {
		for _, on := range n.Stores {
			if on.HasProof(proof) {
				return proof, true
			}
		}
	}
	return "", false
}
