package store

import (
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// proofs are the proofs on the records of the node. A proof is known as long as a record carries it. The lock of the
// index guards them.
type proofs struct {
	byRecord map[string][]string // record -> its proofs
	count    map[string]int      // proof -> number of records that carry it
}

func newProofs() proofs {
	return proofs{byRecord: make(map[string][]string), count: make(map[string]int)}
}

// set replaces the known proofs on a record.
func (p proofs) set(record string, now []string) {
	for _, old := range p.byRecord[record] {
		if p.count[old]--; p.count[old] == 0 {
			delete(p.count, old)
		}
	}
	delete(p.byRecord, record)
	if len(now) == 0 {
		return
	}
	p.byRecord[record] = slices.Clone(now)
	for _, proof := range now {
		p.count[proof]++
	}
}

// proofsOn returns the proofs on a record.
func proofsOn(img images.Image) []string {
	var found []string
	for label := range img.Labels {
		if proof, ok := strings.CutPrefix(label, imagepin.ProofLabelPrefix); ok {
			found = append(found, proof)
		}
	}
	return found
}

// noteProofs updates the known proofs on a record.
func (x *index) noteProofs(img images.Image) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.proofs.set(img.Name, proofsOn(img))
}

// HasProof reports whether a record of the node carries any of the given proofs.
func (s *reader) HasProof(candidates ...string) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return slices.ContainsFunc(candidates, func(proof string) bool { return s.index.proofs.count[proof] > 0 })
}

// Proofs returns the proofs on a record.
func (s *reader) Proofs(record string) []string {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return slices.Clone(s.index.proofs.byRecord[record])
}

// hasProofOn reports whether a record carries a proof. It reports true for an empty proof.
func (s *reader) hasProofOn(record, proof string) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return proof == "" || slices.Contains(s.index.proofs.byRecord[record], proof)
}
