package store

import (
	"context"
	"fmt"
	"sync"

	"github.com/opencontainers/go-digest"
)

// replacing is the blobs that are being replaced: that one has no record for a
// moment is not a loss.
type replacing struct {
	mu  sync.Mutex
	now map[digest.Digest]int
}

// Replacing has [Store.HideBlob] not take a blob for lost that is deleted to be
// written again. done must be called after that; where the blob is not there
// then, the keys that need it leave the index.
func (s *Store) Replacing(d digest.Digest) (done func(context.Context) error) {
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
		if _, err := s.HideBlob(ctx, d); err != nil {
			return fmt.Errorf("look at what replaced %s: %w", d, err)
		}
		return nil
	}
}

func (s *Store) isReplaced(d digest.Digest) bool {
	s.replacing.mu.Lock()
	defer s.replacing.mu.Unlock()
	return s.replacing.now[d] > 0
}
