package store

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Unsynced returns the names of an entry's records whose current state containerd's CRI may not know yet. The CRI follows
// the events of image records.
func (s *reader) Unsynced(e imagepin.Entry) []string {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	var names []string
	for _, name := range []string{e.Ref, e.Record, e.ImageID.String()} {
		target, ok := s.index.unsynced[name]
		if ok && (target == e.RecordTarget.Digest || name == e.ImageID.String()) {
			names = append(names, name)
		}
	}
	return names
}

// allUnsynced returns a copy of the records that containerd's CRI may not know yet, with their targets.
func (x *index) allUnsynced() map[string]digest.Digest {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return maps.Clone(x.unsynced)
}

// MarkSynced notes that containerd's CRI knows an entry's image by names, or does not have to.
func (s *reader) MarkSynced(names ...string) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	for _, name := range names {
		delete(s.index.unsynced, name)
	}
}

// MarkUnsynced notes that another tool has just written the record of an image that is about to be adopted.
func (s *presence) MarkUnsynced(img images.Image, entries ...imagepin.Entry) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	s.index.unsynced[img.Name] = img.Target.Digest
	for _, e := range entries {
		if s.native(e) {
			s.index.unsynced[e.ImageID.String()] = img.Target.Digest
		}
	}
}

// Republish publishes the event of the record called name again. It writes the label that containerd's CRI itself
// writes to each record. It returns ErrNotFound if the record does not exist.
func (s *Store) Republish(ctx context.Context, name string) error {
	img := images.Image{Name: name, Labels: map[string]string{upstream.ImageLabel: upstream.Managed}}
	if _, err := s.config.Records.Update(ctx, img, "labels."+upstream.ImageLabel); err != nil {
		return fmt.Errorf("update image record %s: %w", name, err)
	}
	return nil
}

// noteUnsynced notes the changed records before their keys are in the index. A call that finds a key in the index has to
// wait for the CRI in the same way as the call that wrote it.
func (x *index) noteUnsynced(changes []change) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range changes {
		if c.remove {
			delete(x.unsynced, c.image.Name)
		} else if c.retargets() {
			x.unsynced[c.image.Name] = c.image.Target.Digest
		}
	}
}

// noteRecord notes the current target of a record. The empty target means that the record is gone.
func (x *index) noteRecord(name string, target digest.Digest) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.unsynced[name] != target {
		delete(x.unsynced, name)
	}
}

// noteRecent notes the records of keys that were made ready so recently that containerd's CRI may not have handled
// their events. The CRI may not have been restarted together with this process. targets are the targets of all records.
func (x *index) noteRecent(targets map[string]digest.Digest) {
	for e := range x.each() {
		if time.Since(e.ReadyAt) > lateRecordWindow {
			continue
		}
		for _, name := range []string{e.Ref, e.Record, e.ImageID.String()} {
			if target, ok := targets[name]; ok {
				if is := e.targetDigest(); is == target {
					target = is // not the copy of each record
				}
				x.unsynced[name] = target
			}
		}
	}
}
