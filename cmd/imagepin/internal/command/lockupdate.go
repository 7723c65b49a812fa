package command

import (
	"cmp"
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/imagepin/imagepin/cmd/imagepin/internal/imagerefs"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// lockUpdate resolves some references of an existing lock again, and keeps all other images.
func (a *app) lockUpdate(ctx context.Context, cmd *cli.Command, l *locker) error {
	path := cmp.Or(cmd.String("lock"), cmd.String("lock-output"))
	old, err := readLock(path, nil)
	if err != nil {
		return err
	}
	images, refs, err := selectImages(path, old, cmd.StringSlice("update"))
	if err != nil {
		return err
	}
	resolved, err := l.lock(ctx, refs)
	if err != nil {
		return err
	}
	for _, i := range resolved.Images {
		i.Annotations = images.annotations[i.ID]
		images.kept = append(images.kept, i)
	}
	made, err := lock.New(images.kept)
	if err != nil {
		return err
	}
	summary := l.summary() + " again"
	for _, c := range lock.Compare(old, made) {
		summary += fmt.Sprintf("\n%s: %s, was %s", c.Name, c.New, c.Old)
	}
	return a.writeLock(cmd.String("lock-output"), made, summary)
}

// selection are the images of a lock that remain as they are, and the annotations of the others by ID.
type selection struct {
	kept        []lock.Image
	annotations map[string]map[string]string
}

// selectImages returns the references of a lock that names name, in all their spellings. It fails if one is missing.
func selectImages(path string, l *lock.Lock, names []string) (selection, []imagerefs.Ref, error) {
	s := selection{annotations: make(map[string]map[string]string)}
	found := make(map[string]bool) // by normalized reference
	for _, name := range names {
		ref, err := imagerefs.Parse(name, imagerefs.Place{File: "--update"})
		if err != nil {
			return s, nil, err
		}
		found[ref.Named.String()] = false
	}
	var refs []imagerefs.Ref
	for _, i := range l.Images {
		ref, err := imagerefs.Parse(cmp.Or(i.ID, i.Ref.String()), imagerefs.Place{File: path})
		if err != nil {
			return s, nil, err
		}
		if _, selected := found[ref.Named.String()]; !selected || i.ID == "" {
			s.kept = append(s.kept, i)
			continue
		}
		found[ref.Named.String()] = true
		s.annotations[i.ID] = i.Annotations
		refs = append(refs, ref)
	}
	for _, name := range names {
		ref, err := imagerefs.Parse(name, imagerefs.Place{File: "--update"})
		if err == nil && !found[ref.Named.String()] {
			return s, nil, imagerefs.InvalidInput(fmt.Sprintf("%s has no reference %s", path, ref.Named),
				"Add it to a manifest, and write the lock again: imagepin lock -f FILE")
		}
	}
	return s, refs, nil
}
