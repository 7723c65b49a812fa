package store

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Recorded are the image records and the keys of one moment. They agree, unless another tool has changed a record.
type Recorded struct {
	Records []images.Image
	// Keys are the keys that are ready, in no particular order.
	Keys []imagepin.Entry
}

// ListRecorded lists the image records and the keys. No key is written meanwhile: a write changes the records before the index.
func (s *Store) ListRecorded(ctx context.Context) (Recorded, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return Recorded{}, err
	}
	defer unlock()
	all, err := s.config.Records.List(ctx)
	if err != nil {
		return Recorded{}, fmt.Errorf("list images: %w", err)
	}
	keys := s.index.all()
	r := Recorded{Records: all, Keys: make([]imagepin.Entry, 0, len(keys))}
	for e := range keys {
		r.Keys = append(r.Keys, e.entry())
	}
	return r, nil
}

// Mark has the keys of a moment, for [Store.RecordedSince].
type Mark struct{ keys map[*held]bool }

// Mark returns the keys of this moment.
func (s *reader) Mark() Mark { return Mark{s.index.all()} }

// RecordedSince reports whether a call has recorded an entry since a mark. An inventory that began at the mark may not have
// the content and the snapshot of the entry.
func (s *reader) RecordedSince(before Mark, e imagepin.Entry) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	now := s.index.get(e.Key)
	return now != nil && !before.keys[now] && sameImage(now.entry(), e)
}
