package store

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
)

// sortedIDs are the image IDs of an index in order. The first reader sorts them, and others use the result until the index gets or
// loses an image: kubelet lists the images of a node again and again.
type sortedIDs struct {
	ids atomic.Pointer[[]digest.Digest]
}

// forget is called with the write lock of the index.
func (s *sortedIDs) forget() { s.ids.Store(nil) }

// of returns the keys of byID in order. It is called with a lock of the index, and the caller must not change the result.
func (s *sortedIDs) of(byID map[digest.Digest]group) []digest.Digest {
	if ids := s.ids.Load(); ids != nil {
		return *ids
	}
	ids := slices.AppendSeq(make([]digest.Digest, 0, len(byID)), maps.Keys(byID))
	slices.Sort(ids)
	s.ids.Store(&ids)
	return ids
}

// inOrder returns the entries of each image, in the order of the image IDs.
func (x *index) inOrder() []group {
	x.mu.RLock()
	defer x.mu.RUnlock()
	all := make([]group, 0, len(x.byID))
	for _, id := range x.sortedIDs.of(x.byID) {
		all = append(all, x.byID[id])
	}
	return all
}
