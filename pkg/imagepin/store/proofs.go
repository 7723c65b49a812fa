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
	byRecord map[string][]imagepin.Proof // record -> its proofs
	count    map[string]int              // MAC -> number of records that carry the proof
}

// set replaces the known proofs on a record.
func (p proofs) set(record string, now []imagepin.Proof) {
	for _, old := range p.byRecord[record] {
		if p.count[old.MAC]--; p.count[old.MAC] == 0 {
			delete(p.count, old.MAC)
		}
	}
	delete(p.byRecord, record)
	if len(now) == 0 {
		return
	}
	p.byRecord[record] = now
	for _, proof := range now {
		p.count[proof.MAC]++
	}
}

// noteLabels updates what the labels of a record say besides its keys: its proofs, and whether another tool has pinned its image.
func (x *index) noteLabels(img images.Image) {
	proofs := imagepin.ProofsOf(img.Labels)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.proofs.set(img.Name, proofs)
	x.notePinned(img)
}

// ProofText is how [Store.Put] gets a proof: the MAC and, if a pod uses it, a space and the pod's namespace. It is empty for an
// empty MAC.
func ProofText(mac, namespace string) string {
	if mac == "" || namespace == "" {
		return mac
	}
	return mac + " " + namespace
}

func splitProof(text string) (mac, namespace string) {
	mac, namespace, _ = strings.Cut(text, " ")
	return mac, namespace
}

// usedProof returns the proof, given as [ProofText], as it is recorded for a use now. It is nil for an empty proof.
func usedProof(text string) *imagepin.Proof {
	if text == "" {
		return nil
	}
	p := imagepin.NewProof(splitProof(text))
	return &p
}

// HasProof reports whether a record of the node carries a proof with any of the given MACs.
func (s *reader) HasProof(macs ...string) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return slices.ContainsFunc(macs, func(mac string) bool { return s.index.proofs.count[mac] > 0 })
}

// Proofs returns the proofs on a record, least recently used first.
func (s *reader) Proofs(record string) []imagepin.Proof {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return slices.Clone(s.index.proofs.byRecord[record])
}

// hasProofOn reports whether the use of a proof, given as [ProofText], is recorded on a record. It reports true for an empty
// proof.
func (s *reader) hasProofOn(record, proof string) bool {
	if proof == "" {
		return true
	}
	mac, namespace := splitProof(proof)
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	_, changed := imagepin.WithProof(s.index.proofs.byRecord[record], imagepin.NewProof(mac, namespace))
	return !changed
}
