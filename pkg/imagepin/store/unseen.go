package store

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Unseen gives the names of an entry's records that containerd's CRI may not know
// yet as they are: it follows the events of what is written.
func (s *Store) Unseen(e imagepin.Entry) []string {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	var names []string
	for _, name := range []string{e.Ref, e.Record, e.ImageID.String()} {
		target, ok := s.index.unseen[name]
		if ok && (target == e.RecordTarget.Digest || name == e.ImageID.String()) {
			names = append(names, name)
		}
	}
	return names
}

// Seen notes that containerd's CRI knows an entry's image under names, or that
// there is nothing to know.
func (s *Store) Seen(names ...string) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	for _, name := range names {
		delete(s.index.unseen, name)
	}
}

// Unsee notes that another tool has just written the record of an image that is
// about to be adopted.
func (s *Store) Unsee(img images.Image, entries ...imagepin.Entry) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	s.index.unseen[img.Name] = img.Target.Digest
	for _, e := range entries {
		if s.native(e) {
			s.index.unseen[e.ImageID.String()] = img.Target.Digest
		}
	}
}

// Republish publishes the event of the record called name once more, by writing
// what containerd's CRI itself writes to each. It fails with ErrNotFound where there
// is no such record.
func (s *Store) Republish(ctx context.Context, name string) error {
	img := images.Image{Name: name, Labels: map[string]string{criManagedLabel: criManagedValue}}
	if _, err := s.Records.Update(ctx, img, "labels."+criManagedLabel); err != nil {
		return fmt.Errorf("update image record %s: %w", name, err)
	}
	return nil
}

// noteUnseen notes what was written, before it is in the index: a call that finds
// it there has to wait as the one does that has written it.
func (x *index) noteUnseen(changes []change) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range changes {
		if c.remove {
			delete(x.unseen, c.image.Name)
		} else if c.retargets() {
			x.unseen[c.image.Name] = c.image.Target.Digest
		}
	}
}

// noteRecord notes how a record is now; the zero target is that it is gone.
func (x *index) noteRecord(name string, target digest.Digest) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.unseen[name] != target {
		delete(x.unseen, name)
	}
}

// noteRecent notes the records of keys that were made so lately that containerd's
// CRI may not have handled their events: it may not have been restarted with this
// process. targets are those of all records.
func (x *index) noteRecent(targets map[string]digest.Digest) {
	for _, e := range x.byKey {
		if time.Since(e.ReadyAt) > lateRecord {
			continue
		}
		for _, name := range []string{e.Ref, e.Record, e.ImageID.String()} {
			if target, ok := targets[name]; ok {
				x.unseen[name] = target
			}
		}
	}
}
