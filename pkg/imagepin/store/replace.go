package store

import (
	"context"
	"fmt"
	"sync"

	"github.com/opencontainers/go-digest"
)

// replacing counts the blobs that are being replaced. A blob that is being replaced is not lost, although it has no
// record for a moment.
type replacing struct {
	mu  sync.Mutex
	now map[digest.Digest]int
}

// BeginReplace makes [Store.EvictBlob] ignore the deletion of a blob that is about to be written again. The caller must
// call done after that. If the blob does not exist then, done removes the keys that need it from the index.
func (s *Store) BeginReplace(d digest.Digest) (done func(context.Context) error) {
	s.replacing.mu.Lock()
	defer s.replacing.mu.Unlock()
	if s.replacing.now == nil {
		s.replacing.now = make(map[digest.Digest]int)
	}
	s.replacing.now[d]++
	return func(ctx context.Context) error {
		s.replacing.mu.Lock()
		if s.replacing.now[d]--; s.replacing.now[d] == 0 {
			delete(s.replacing.now, d)
		}
		s.replacing.mu.Unlock()
		if _, err := s.EvictBlob(ctx, d); err != nil {
			return fmt.Errorf("check replaced blob %s: %w", d, err)
		}
		return nil
	}
}

func (s *presence) isBeingReplaced(d digest.Digest) bool {
	s.replacing.mu.Lock()
	defer s.replacing.mu.Unlock()
	return s.replacing.now[d] > 0
}
