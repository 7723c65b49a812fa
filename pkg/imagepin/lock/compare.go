package lock

import (
	"cmp"
	"slices"

	"github.com/opencontainers/go-digest"
)

// Change is a difference between two locks.
type Change struct {
	// Name is the reference as it was written in a manifest, or the reference by digest of an image without one.
	Name string
	// Old and New are the digests in the two locks. Old is empty if only the new lock has the reference, and New if only the
	// old one has it.
	Old, New digest.Digest
}

// Compare returns the differences between two locks, sorted by name. Platforms and other annotations do not count: they
// follow from the digest.
func Compare(old, new *Lock) []Change {
	before, after := old.digests(), new.digests()
	var changes []Change
	for name, d := range before {
		if after[name] != d {
			changes = append(changes, Change{Name: name, Old: d, New: after[name]})
		}
	}
	for name, d := range after {
		if _, known := before[name]; !known {
			changes = append(changes, Change{Name: name, New: d})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return cmp.Compare(a.Name, b.Name) })
	return changes
}

// digests returns the digest of each name of a [Change].
func (l *Lock) digests() map[string]digest.Digest {
	all := make(map[string]digest.Digest, len(l.Images))
	for _, i := range l.Images {
		all[cmp.Or(i.ID, i.Ref.String())] = i.Ref.Digest()
	}
	return all
}
