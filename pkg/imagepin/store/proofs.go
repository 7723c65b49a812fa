package store

import (
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// proofs are those that stand on the records of the node: a proof goes with the
// last record that carries it. The index's lock guards them.
type proofs struct {
	on    map[string][]string // record -> its proofs
	count map[string]int      // proof -> records that carry it
}

func newProofs() proofs {
	return proofs{on: make(map[string][]string), count: make(map[string]int)}
}

// set replaces what is known of the proofs on a record.
func (p proofs) set(record string, now []string) {
	for _, old := range p.on[record] {
		if p.count[old]--; p.count[old] == 0 {
			delete(p.count, old)
		}
	}
	delete(p.on, record)
	if len(now) == 0 {
		return
	}
	p.on[record] = slices.Clone(now)
	for _, proof := range now {
		p.count[proof]++
	}
}

// proofsOn reads the proofs on a record.
func proofsOn(img images.Image) []string {
	var found []string
	for label := range img.Labels {
		if proof, ok := strings.CutPrefix(label, imagepin.ProofLabelPrefix); ok {
			found = append(found, proof)
		}
	}
	return found
}

// noteProofs takes notice of the proofs on a record as it is now.
func (x *index) noteProofs(img images.Image) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.proofs.set(img.Name, proofsOn(img))
}

// HasProof tells whether any of the given proofs stands on a record of the
// node.
func (s *Store) HasProof(candidates ...string) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return slices.ContainsFunc(candidates, func(proof string) bool { return s.index.proofs.count[proof] > 0 })
}

// Proofs gives the proofs that stand on a record.
func (s *Store) Proofs(record string) []string {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return slices.Clone(s.index.proofs.on[record])
}

// hasProofOn tells whether a record carries a proof. Every record carries none.
func (s *Store) hasProofOn(record, proof string) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return proof == "" || slices.Contains(s.index.proofs.on[record], proof)
}
