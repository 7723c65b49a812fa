package store

import (
	"context"
	"maps"
	"slices"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// MarkDurable records that images are durable, whose entries have the mark. It skips a key that has another image now, that was
// recorded again, that is not ready any more, or whose record another tool has deleted. It creates no record.
func (s *Store) MarkDurable(ctx context.Context, entries ...imagepin.Entry) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	marked := make(map[string][]imagepin.Entry) // by record
	for _, e := range entries {
		now, ok := s.Get(e.Key)
		if ok && now.Root.Digest == e.Root.Digest && now.ImageID == e.ImageID && now.ChainID == e.ChainID && now.ReadyAt.Equal(e.ReadyAt) && now.Durable != e.Durable {
			now.Durable = e.Durable
			marked[now.Record] = append(marked[now.Record], now)
		}
	}
	for batch := range slices.Chunk(slices.Sorted(maps.Keys(marked)), unusedBatch) {
		if err := s.relabel(ctx, batch, marked); err != nil {
			return err
		}
	}
	return nil
}
