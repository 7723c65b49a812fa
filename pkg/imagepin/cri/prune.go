package cri

import (
	"context"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// RemoveUnused removes the images that a name matches with all of their references, as RemoveImage does, for the target of
// a handler if it is not empty. It returns the removed entries, none if the name is unknown.
//
// It fails with [imagepin.ImageInUse] (ErrFailedPrecondition) if a container uses what it would remove, and removes
// nothing then.
func (s *Service) RemoveUnused(ctx context.Context, name, handler string) ([]imagepin.Entry, error) {
	return s.remover.removeNamed(ctx, selection{name: name, handler: handler, unused: true})
}

// PruneOptions select what [Service.Prune] removes.
type PruneOptions struct {
	// Handler selects the images for the target of a runtime handler; empty selects all.
	Handler string
	// Before selects the images whose last use was before a time.
	Before time.Time
	// Pinned also removes images that a pin needs but does not retain.
	Pinned bool
	// DryRun removes nothing.
	DryRun bool
}

// Prune removes the images that nothing uses, and returns the removed entries. It keeps the images of containers, sandboxes
// and image volumes, the sandbox image, images that containerd, another tool or a pin retains, and those that a pin needs.
func (s *Service) Prune(ctx context.Context, o PruneOptions) ([]imagepin.Entry, error) {
	return s.remover.prune(ctx, o)
}

func (s *remover) prune(ctx context.Context, o PruneOptions) ([]imagepin.Entry, error) {
	wanted := func(imagepin.Entry) bool { return true }
	if o.Handler != "" {
		rt, err := s.lookup(o.Handler)
		if err != nil {
			return nil, err
		}
		wanted = func(e imagepin.Entry) bool { return e.Target == rt.Target }
	}
	return s.pruneWanted(ctx, func(e imagepin.Entry) bool {
		return wanted(e) && s.lastUse(e).Before(o.Before) && !s.keeps(e, o.Pinned)
	}, o.DryRun)
}

// RemoveKeys removes images, unless something uses them, and collects their content.
func (s *Service) RemoveKeys(ctx context.Context, keys []imagepin.Key) error {
	wanted := make(map[imagepin.Key]bool, len(keys))
	for _, k := range keys {
		wanted[k] = true
	}
	_, err := s.remover.pruneWanted(ctx, func(e imagepin.Entry) bool { return wanted[e.Key] }, false)
	return err
}

// pruneWanted removes the entries that are wanted and that nothing uses, and collects their content. With dry it removes
// nothing.
func (s *remover) pruneWanted(ctx context.Context, wanted func(imagepin.Entry) bool, dry bool) (removed []imagepin.Entry, _ error) {
	unused := func(ctx context.Context, id digest.Digest, used uses) []imagepin.Entry {
		return slices.DeleteFunc(slices.Clone(s.allByID(id)), func(e imagepin.Entry) bool { return !wanted(e) || used.by(e) != "" })
	}
	volumes := make(volumesOf)
	used, err := s.inUse(ctx, true, volumes)
	if err != nil {
		return nil, err
	}
	for _, id := range s.imageIDs() {
		entries := unused(ctx, id, used)
		if len(entries) == 0 {
			continue
		}
		if !dry {
			if entries, err = s.pruneOne(ctx, id, unused, volumes); err != nil {
				break
			}
		}
		removed = append(removed, entries...)
	}
	if dry || len(removed) == 0 {
		return removed, err
	}
	if cerr := s.collect(ctx); err == nil {
		err = cerr
	}
	return removed, err
}

// pruneOne removes the unused entries of an image. A pod may have started to use the image since it was selected, so it
// selects again while it holds the locks.
func (s *remover) pruneOne(ctx context.Context, id digest.Digest, unused func(context.Context, digest.Digest, uses) []imagepin.Entry, volumes volumesOf) ([]imagepin.Entry, error) {
	held := removal{entries: s.allByID(id)}.locks()
	unlock, err := s.Locks.ForRemoval(ctx, held...)
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, ref := range (removal{entries: s.allByID(id)}).locks() {
		if !slices.Contains(held, ref) {
			return nil, nil // it has got another reference since, so something uses it
		}
	}
	used, err := s.inUse(ctx, true, volumes)
	if err != nil {
		return nil, err
	}
	entries := unused(ctx, id, used)
	if len(entries) == 0 {
		return nil, nil
	}
	if err := s.removeEntries(ctx, entries); err != nil {
		return nil, err
	}
	log.G(ctx).WithField("image", entries[0].Ref).WithField("keys", len(entries)).Info("pruned image")
	return entries, nil
}

// keeps reports whether an image is kept although no container uses it: it is the sandbox image, containerd, another tool or a pin
// retains it, or a pin needs it, unless pinned.
func (s *remover) keeps(e imagepin.Entry, pinned bool) bool {
	if s.Store.Pinned(e.ImageID) || slices.Contains(s.Settings().PinnedImages, e.Ref) || s.Pins.Retains(e.Root.Digest) {
		return true
	}
	if slices.ContainsFunc(s.Store.Find(s.Settings().SandboxImage), func(p imagepin.Entry) bool { return p.ImageID == e.ImageID }) {
		return true
	}
	return !pinned && slices.ContainsFunc(s.Pins.List(), func(p pin.Pin) bool { return p.Root.Digest == e.Root.Digest })
}

// imageInUse returns the error for entries that cannot be removed.
func imageInUse(entries []imagepin.Entry, used uses) error {
	i := slices.IndexFunc(entries, func(e imagepin.Entry) bool { return used.by(e) != "" })
	e := entries[i]
	return &imagepin.Error{
		Reason: imagepin.ImageInUse, Ref: e.Ref, Target: e.Target.String(), Class: errdefs.ErrFailedPrecondition,
		Message: used.by(e) + " uses it",
		Hint:    "Remove the pod first, or select another runtime handler with --handler.",
	}
}
