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

// maxProofs is how many proofs a pin has at most; the oldest go.
const maxProofs = 16

// Proof says that a credential has been accepted for what a pin retains, see
// package resolve. It outlives the records of the image, as the content does.
type Proof struct {
	MAC string
	At  time.Time
}

// readProofs reads the proofs on a record, oldest first.
func readProofs(img images.Image) []Proof {
	var proofs []Proof
	for label, value := range img.Labels {
		mac, ok := strings.CutPrefix(label, imagepin.ProofLabelPrefix)
		if !ok {
			continue
		}
		at, _ := time.Parse(time.RFC3339, value) // when is only for which go first
		proofs = append(proofs, Proof{MAC: mac, At: at})
	}
	slices.SortFunc(proofs, func(a, b Proof) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.MAC, b.MAC)) })
	return proofs
}

// withProofs gives a pin's proofs with more, which are new; ok is false where
// none is.
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

// Prove notes, on the pins that retain a digest of ref's repository, that
// credentials have been accepted for it. It writes only what is news.
func (s *Store) Prove(ctx context.Context, ref reference.Named, root digest.Digest, macs ...string) error {
	for _, id := range s.retaining(ref, root) {
		if p, ok := s.Get(id); ok {
			if _, news := p.withProofs(macs); !news {
				continue
			}
		}
		if _, err := s.change(ctx, id, func(old *Pin) (*Pin, Event, error) {
			if old == nil || !old.Retain || old.Root.Digest != root {
				return old, "", nil
			}
			proofs, news := old.withProofs(macs)
			if !news {
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

// retaining gives the pins that retain a digest of ref's repository.
func (s *Store) retaining(ref reference.Named, root digest.Digest) []ID {
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

// HasProof tells whether any of the given proofs stands on a pin.
func (s *Store) HasProof(macs ...string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.ContainsFunc(macs, func(mac string) bool { return s.proofs[mac] > 0 })
}
