package store

import (
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// maxKeysPerRecord is the default of [Config.KeysARecord]. containerd writes all labels of a record when one of them
// changes, so without a limit each new tag of a digest with a thousand tags would write a thousand labels.
const maxKeysPerRecord = 16

// chooseRecords sets the record that carries the label of each entry. This is the record of the digest or, if that is
// full, the record of the tag. A key of another platform's image has no record of a tag.
func (s *presence) chooseRecords(entries []imagepin.Entry) {
	limit := s.config.KeysARecord
	if limit == 0 {
		limit = maxKeysPerRecord
	}
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	added := make(map[string]int)
	for i := range entries {
		e := &entries[i]
		if now := s.index.get(e.Key); now != nil && now.Record == e.Record {
			continue
		}
		if s.hasTagRecord(*e) && len(s.index.byRecord[e.Record])+added[e.Record] >= limit {
			e.Record = e.Ref
			continue
		}
		added[e.Record]++
	}
}

// displaced returns the keys that have to leave the records of tags, because entries give these tags another digest.
// before are the keys as they are, and after are the same keys on the records of their digests.
func (s *presence) displaced(entries []imagepin.Entry) (before, after []imagepin.Entry, _ error) {
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
