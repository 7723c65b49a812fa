package pin

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// maxProofs is the maximum number of proofs of a pin. The oldest proofs are removed first.
const maxProofs = 16

// Proof is the proof that the registry accepted a credential for the content that a pin retains, see package resolve.
// Like the content, it outlives the records of the image.
type Proof struct {
	MAC string
	At  time.Time
}

// readProofs returns the proofs on a record, oldest first.
func readProofs(img images.Image) []Proof {
	var proofs []Proof
	for label, value := range img.Labels {
		mac, ok := strings.CutPrefix(label, imagepin.ProofLabelPrefix)
		if !ok {
			continue
		}
		at, _ := time.Parse(time.RFC3339, value) // the time only determines which proofs are removed first
		proofs = append(proofs, Proof{MAC: mac, At: at})
	}
	slices.SortFunc(proofs, func(a, b Proof) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.MAC, b.MAC)) })
	return proofs
}

// withProofs returns a pin's proofs together with new ones. ok is false if none of macs is new.
func (p Pin) withProofs(macs []string) (proofs []Proof, ok bool) {
	proofs = slices.Clone(p.Proofs)
	now := time.Now().UTC().Truncate(time.Second)
	for _, mac := range macs {
		if !slices.ContainsFunc(proofs, func(known Proof) bool { return known.MAC == mac }) {
			proofs = append(proofs, Proof{MAC: mac, At: now})
			ok = true
		}
	}
	return proofs[max(0, len(proofs)-maxProofs):], ok
}

// Prove adds proofs to the pins that retain a digest of ref's repository. It only writes if a proof is new.
func (s *Store) Prove(ctx context.Context, ref reference.Named, root digest.Digest, macs ...string) error {
	for _, id := range s.retaining(ref, root) {
		if p, ok := s.Get(id); ok {
			if _, isNew := p.withProofs(macs); !isNew {
				continue
			}
		}
		if _, err := s.change(ctx, id, func(old *Pin) (*Pin, Event, error) {
			if old == nil || !old.Retain || old.Root.Digest != root {
				return old, "", nil
			}
			proofs, isNew := old.withProofs(macs)
			if !isNew {
				return old, "", nil
			}
			p := *old
			p.Proofs = proofs
			return &p, "", nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// retaining returns the pins that retain a digest of ref's repository.
func (s *table) retaining(ref reference.Named, root digest.Digest) []ID {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.retained[root] == 0 {
		return nil
	}
	var ids []ID
	for id, p := range s.pins {
		if !p.Retain || p.Root.Digest != root {
			continue
		}
		if of, err := reference.ParseNamed(id.Ref); err == nil && of.Name() == ref.Name() {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b ID) int { return strings.Compare(a.String(), b.String()) })
	return ids
}

// HasProof reports whether any pin has any of the given proofs.
func (s *table) HasProof(macs ...string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.ContainsFunc(macs, func(mac string) bool { return s.proofs[mac] > 0 })
}
