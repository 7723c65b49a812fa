package store

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// MarkUsed records that keys are used now. It writes only those whose recorded use is older than interval, in one transaction, and
// ignores keys that are not ready.
func (s *Store) MarkUsed(ctx context.Context, interval time.Duration, keys ...imagepin.Key) error {
	if len(s.outdatedUses(interval, keys)) == 0 {
		return nil
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	changed := make(map[string][]imagepin.Entry) // by record
	for _, e := range s.outdatedUses(interval, keys) {
		e.UsedAt = time.Now()
		changed[e.Record] = append(changed[e.Record], e)
	}
	return s.relabel(ctx, slices.Sorted(maps.Keys(changed)), changed)
}

// outdatedUses returns the entries of keys whose recorded use is older than interval. A use in the future is outdated, too: the clock of
// the node was wrong.
func (s *reader) outdatedUses(interval time.Duration, keys []imagepin.Key) (outdated []imagepin.Entry) {
	for _, k := range keys {
		e, ok := s.Get(k)
		if age := time.Since(e.LastUse()); ok && (age >= interval || age < 0) {
			outdated = append(outdated, e)
		}
	}
	return outdated
}
