package store

import (
	"context"
	"errors"
	"slices"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Adoption is an image that another tool has recorded, and the keys that it gets.
type Adoption struct {
	Image   images.Image
	Entries []imagepin.Entry
}

// Adopt is [Store.Put] for images of other tools. It skips an image whose record was deleted or has another target now,
// because there is an event for that. It also skips a key that a pull recorded after the record was written, and does not
// replace a key because of a record that a pull for another target may have written.
//
// The record of the image holds the content and snapshots that the keys need.
func (s *Store) Adopt(ctx context.Context, adoptions ...Adoption) (Change, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return Change{}, err
	}
	defer unlock()
	if s.config.AdoptAtATime > 1 {
		return s.adoptGroups(ctx, adoptions)
	}
	return s.adopt(ctx, adoptions)
}

// adopt is Adopt for a caller that holds the lock.
func (s *writer) adopt(ctx context.Context, adoptions []Adoption) (Change, error) {
	for {
		change, err := s.put(ctx, "", s.notPulledSince(adoptions), func(ctx context.Context, store images.Store) error {
			return checkUnmoved(ctx, store, adoptions)
		})
		var moved movedError
		if !errors.As(err, &moved) {
			return change, err
		}
		adoptions = slices.DeleteFunc(slices.Clone(adoptions), func(a Adoption) bool { return a.Image.Name == moved.record })
	}
}

// notPulledSince returns the entries of adoptions without those whose key the record of the adoption may not replace.
func (s *reader) notPulledSince(adoptions []Adoption) []imagepin.Entry {
	var entries []imagepin.Entry
	for _, a := range adoptions {
		for _, e := range a.Entries {
			now, ok := s.Get(e.Key)
			if !ok || sameImage(now, e) || s.mayReplace(now, a.Image) {
				entries = append(entries, e)
			}
		}
	}
	return entries
}

// mayReplace reports whether the record of a reference may replace a key of it. It may not if the key was recorded after the
// record was written, or if a pull for another target may have written the record.
func (s *reader) mayReplace(now imagepin.Entry, img images.Image) bool {
	ofPull := slices.ContainsFunc(s.ByRef(img.Name), func(e imagepin.Entry) bool {
		return e.Source == imagepin.SourcePull && e.RecordTarget.Digest == img.Target.Digest
	})
	return !ofPull && !now.ReadyAt.After(img.UpdatedAt)
}

// movedError reports that a record was deleted or has another target.
type movedError struct{ record string }

func (e movedError) Error() string { return "image record " + e.record + " was changed concurrently" }

// checkUnmoved returns a movedError if the record of an adoption was deleted or has another target.
func checkUnmoved(ctx context.Context, store images.Store, adoptions []Adoption) error {
	for _, a := range adoptions {
		now, err := readRecord(ctx, store, a.Image.Name)
		if err != nil {
			return err
		}
		if now == nil || now.Target.Digest != a.Image.Target.Digest {
			return movedError{record: a.Image.Name}
		}
	}
	return nil
}
