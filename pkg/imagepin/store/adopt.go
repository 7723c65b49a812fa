package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Adoption is an image that another tool has recorded, and the keys that it is to
// have.
type Adoption struct {
	Image   images.Image
	Entries []imagepin.Entry
}

// Adopt is [Store.Put] for images of other tools. One whose record is gone or
// targets something else by now is left out: there is an event of that. So is a
// key that a pull has recorded after the record was written.
//
// What the keys need is held by the record of the image.
func (s *Store) Adopt(ctx context.Context, adoptions ...Adoption) (Change, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return Change{}, err
	}
	defer unlock()
	for {
		change, err := s.put(ctx, "", s.older(adoptions), func(ctx context.Context, store images.Store) error {
			return unmoved(ctx, store, adoptions)
		})
		var moved movedError
		if !errors.As(err, &moved) {
			return change, err
		}
		adoptions = slices.DeleteFunc(slices.Clone(adoptions), func(a Adoption) bool { return a.Image.Name == moved.record })
	}
}

// older gives the entries of adoptions that no pull has recorded anew.
func (s *Store) older(adoptions []Adoption) []imagepin.Entry {
	var entries []imagepin.Entry
	for _, a := range adoptions {
		for _, e := range a.Entries {
			if now, ok := s.Get(e.Key); !ok || !now.ReadyAt.After(a.Image.UpdatedAt) || sameImage(now, e) {
				entries = append(entries, e)
			}
		}
	}
	return entries
}

// movedError says that a record does not target any more what it did.
type movedError struct{ record string }

func (e movedError) Error() string { return "image record " + e.record + " was changed meanwhile" }

// unmoved fails with a movedError where the record of an adoption has changed.
func unmoved(ctx context.Context, store images.Store, adoptions []Adoption) error {
	for _, a := range adoptions {
		now, err := store.Get(ctx, a.Image.Name)
		if errdefs.IsNotFound(err) || err == nil && now.Target.Digest != a.Image.Target.Digest {
			return movedError{record: a.Image.Name}
		}
		if err != nil {
			return fmt.Errorf("read image record %s: %w", a.Image.Name, err)
		}
	}
	return nil
}
