package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// UnusedFor is how long a key whose target no runtime handler has is kept like one that pods can use. After that its image
// is listed without its names, so that kubelet collects it.
const UnusedFor = 7 * 24 * time.Hour

// unusedBatch is how many records are marked in one transaction.
const unusedBatch = 500

// MarkUnused records since when no runtime handler has had the targets of keys, and removes that from the keys whose target a
// handler has again. It returns all keys without a handler. It writes nothing if the runtime handlers have not changed since
// the last call.
func (s *Store) MarkUnused(ctx context.Context) (unused []imagepin.Entry, _ error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	now := time.Now()
	changed := make(map[string][]imagepin.Entry) // by record
	for h := range s.index.all() {
		e := h.entry()
		marked := e
		if !s.IsUnused(e) {
			marked.UnusedAt = time.Time{}
		} else {
			if e.UnusedAt.IsZero() || e.UnusedAt.Before(e.ReadyAt) { // the latter if the node's clock was wrong, as before its first synchronization
				marked.UnusedAt = now
			}
			unused = append(unused, marked)
		}
		if !marked.UnusedAt.Equal(e.UnusedAt) {
			changed[e.Record] = append(changed[e.Record], marked)
		}
	}
	for batch := range slices.Chunk(slices.Sorted(maps.Keys(changed)), unusedBatch) {
		if err := s.relabel(ctx, batch, changed); err != nil {
			return nil, err
		}
	}
	return unused, nil
}

// relabel writes the labels of entries, by record, and updates the index. It changes nothing else of the records, and skips
// those that do not carry the entries any more. A label that has no room for its entry stays. The caller holds the mutex.
func (s *writer) relabel(ctx context.Context, names []string, entries map[string][]imagepin.Entry) error {
	var written []imagepin.Entry
	err := s.config.Records.Atomically(ctx, func(ctx context.Context, records images.Store) error {
		written = nil
		for _, name := range names {
			img, err := readRecord(ctx, records, name)
			if err != nil {
				return err
			}
			if img == nil {
				continue
			}
			update, fields := images.Image{Name: name, Labels: make(map[string]string)}, []string(nil)
			for _, e := range entries[name] {
				label, value, err := imagepin.EncodeKeyLabel(e)
				if err != nil || img.Labels[label] == "" || img.Target.Digest != e.RecordTarget.Digest {
					continue
				}
				update.Labels[label] = value
				fields = append(fields, "labels."+label)
				written = append(written, e)
			}
			if len(fields) == 0 {
				continue
			}
			failpoint.Reach("store.write")
			if _, err := records.Update(ctx, update, fields...); err != nil && !errdefs.IsNotFound(err) {
				return fmt.Errorf("update image record %s: %w", name, err)
			}
		}
		failpoint.Reach("store.commit")
		return nil
	})
	if err != nil {
		return err
	}
	s.index.replace(nil, written)
	return nil
}

// IsUnused reports whether no runtime handler has the target of an entry.
func (s *presence) IsUnused(e imagepin.Entry) bool {
	_, used := s.config.Runtimes().ForTarget(e.Target)
	return !used
}

// Expired reports whether an entry has been unused for longer than [UnusedFor].
func (s *presence) Expired(e imagepin.Entry) bool {
	return !e.UnusedAt.IsZero() && time.Since(e.UnusedAt) > UnusedFor && s.IsUnused(e)
}

// ExpiredBeside returns the keys of expired entries whose image also has keys that pods can use: kubelet does not collect
// these images.
func (s *presence) ExpiredBeside() (keys []imagepin.Key) {
	for _, img := range s.Images() {
		var expired []imagepin.Key
		for _, e := range img.Entries {
			if s.Expired(e) {
				expired = append(expired, e.Key)
			}
		}
		if len(expired) < len(img.Entries) {
			keys = append(keys, expired...)
		}
	}
	return keys
}
