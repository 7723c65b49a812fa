package store

import (
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
)

// byShortID returns the entries of the only image whose ID begins with short, with or without the algorithm: nil if there is none, or
// more than one. It reads all IDs, which only people shorten: a tree of them would take a tenth of the index. The caller holds the lock.
func (x *index) byShortID(short string) group {
	algorithm, digits, ok := strings.Cut(short, ":")
	if !ok {
		algorithm, digits = "", short
	}
	if digits == "" || strings.Trim(digits, "0123456789abcdef") != "" {
		return nil
	}
	var found []digest.Digest
	for id := range x.byID {
		if strings.HasPrefix(id.Encoded(), digits) {
			found = append(found, id)
		}
	}
	// Only the first two in the order of their digits count, as for the CRI: it matters where the algorithms of IDs differ.
	slices.SortFunc(found, func(a, b digest.Digest) int { return strings.Compare(a.Encoded(), b.Encoded()) })
	means := func(i int) bool {
		return i < len(found) && (algorithm == "" || found[i].Algorithm().String() == algorithm)
	}
	if !means(0) || means(1) {
		return nil
	}
	return x.byID[found[0]]
}
