package store

import (
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// keysARecord is how many keys the record of a digest carries, unless
// [Config.KeysARecord] says otherwise. containerd writes all labels of a record
// whenever one of them changes, so that a digest of a thousand tags would cost a
// thousand labels for each new one.
const keysARecord = 16

// carried chooses the record that carries the label of each entry, in place: the
// record of the digest, and where that carries as many keys as it may, the record
// of the tag. A key of another platform's image has no record of a tag.
func (s *Store) carried(entries []imagepin.Entry) {
	limit := s.KeysARecord
	if limit == 0 {
		limit = keysARecord
	}
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	added := make(map[string]int)
	for i := range entries {
		e := &entries[i]
		if now := s.index.byKey[e.Key]; now != nil && now.Record == e.Record {
			continue
		}
		if s.tagged(*e) && len(s.index.byRecord[e.Record])+added[e.Record] >= limit {
			e.Record = e.Ref
			continue
		}
		added[e.Record]++
	}
}

// displaced gives the keys that the records of tags carry, that are of another
// digest than the entries about to be recorded of the same tags: as they are, and
// as they are carried by the records of their digests. The records of the tags are
// about to mean something else.
func (s *Store) displaced(entries []imagepin.Entry) (before, after []imagepin.Entry, _ error) {
	for _, e := range entries {
		if !s.native(e) || strings.Contains(e.Ref, "@") {
			continue
		}
		for _, o := range s.ByRef(e.Ref) {
			if o.Record != o.Ref || o.RecordTarget.Digest == e.RecordTarget.Digest || has(entries, o.Key) || has(before, o.Key) {
				continue
			}
			ref, err := reference.ParseNamed(o.Ref)
			if err != nil {
				return nil, nil, fmt.Errorf("reference %s: %w", o.Ref, err)
			}
			moved := o
			if moved.Record, err = RecordName(ref, o.RecordTarget.Digest); err != nil {
				return nil, nil, err
			}
			before, after = append(before, o), append(after, moved)
		}
	}
	return before, after, nil
}

func has(entries []imagepin.Entry, k imagepin.Key) bool {
	return slices.ContainsFunc(entries, func(e imagepin.Entry) bool { return e.Key == k })
}
