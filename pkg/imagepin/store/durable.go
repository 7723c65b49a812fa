package store

import (
	"context"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// MarkDurable records that images are durable, whose entries have the mark. It skips a key that has another image now, that was
// recorded again, or that is not ready any more.
func (s *Store) MarkDurable(ctx context.Context, entries ...imagepin.Entry) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	var marked []imagepin.Entry
	for _, e := range entries {
		now, ok := s.Get(e.Key)
		if ok && now.Root.Digest == e.Root.Digest && now.ImageID == e.ImageID && now.ChainID == e.ChainID && now.ReadyAt.Equal(e.ReadyAt) {
			now.Durable = e.Durable
			marked = append(marked, now)
		}
	}
	_, err = s.put(ctx, "", marked, nil)
	return err
}
