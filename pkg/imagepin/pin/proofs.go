package pin

import (
	"context"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Proof is the proof that the registry accepted a credential for the content that a pin retains. Like the content, it outlives the
// records of the image.
type Proof = imagepin.Proof

// Prove records the use of proofs on the pins that retain a digest of ref's repository. It only writes if a proof is new, or was used
// last on an earlier day.
func (s *Store) Prove(ctx context.Context, ref reference.Named, root digest.Digest, used ...Proof) error {
	for _, id := range s.retaining(ref, root) {
		if p, ok := s.Get(id); ok {
			if _, changed := imagepin.MergeProofs(p.Proofs, used); !changed {
				continue
			}
		}
		if _, err := s.change(ctx, id, func(old *Pin) (*Pin, Event, error) {
			if old == nil || !old.Retain || old.Root.Digest != root {
				return old, "", nil
			}
			proofs, changed := imagepin.MergeProofs(old.Proofs, used)
			if !changed {
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
func (s *Store) retaining(ref reference.Named, root digest.Digest) []ID {
	ids := s.table.retaining(ref, root)
	for _, p := range s.lock.ofRoot(root) {
		if inRepository(p.Ref, ref) {
			ids = append(ids, p.ID)
		}
	}
	slices.SortFunc(ids, func(a, b ID) int { return strings.Compare(a.String(), b.String()) })
	return ids
}

func inRepository(name string, ref reference.Named) bool {
	of, err := reference.ParseNamed(name)
	return err == nil && of.Name() == ref.Name()
}

// retaining returns the pins that retain a digest of ref's repository, in no particular order.
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
		if inRepository(id.Ref, ref) {
			ids = append(ids, id)
		}
	}
	return ids
}

// HasProof reports whether any pin has any of the given proofs.
func (s *Store) HasProof(macs ...string) bool { return s.table.hasProof(macs) || s.lock.hasProof(macs) }

func (s *table) hasProof(macs []string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.ContainsFunc(macs, func(mac string) bool { return s.proofs[mac] > 0 })
}
