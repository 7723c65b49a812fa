package cri

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// removeImage removes an image with all of its references. A call that names a handler removes it for that handler's
// target. A call without one (kubelet's image GC, by ID) removes it from every unused target. If all targets are in
// use, it removes the image from all of them, as containerd's CRI does. It waits for pulls of the image, and for calls
// that are about to use it.
//
// It does not call RemoveImage of containerd's CRI, which would not wait for a pull that has started in the meantime.
func (s *remover) removeImage(ctx context.Context, r *runtime.RemoveImageRequest, _ func(context.Context, *runtime.RemoveImageRequest) (*runtime.RemoveImageResponse, error)) (*runtime.RemoveImageResponse, error) {
	name, handler := r.GetImage().GetImage(), r.GetImage().GetRuntimeHandler()
	if handler != "" {
		if _, err := s.lookup(handler); err != nil {
			return nil, err
		}
	}
	held := []string{normalized(name)} // a first pull of the image may be in progress
	removed := false
	for {
		unlock, err := s.Locks.ForRemoval(ctx, held...)
		if err != nil {
			return nil, err
		}
		what, err := s.findRemoval(ctx, name)
		if err != nil {
			unlock()
			return nil, err
		}
		locks := what.locks()
		if missing := slices.ContainsFunc(locks, func(ref string) bool { return !slices.Contains(held, ref) }); missing {
			unlock()
			held = append(locks, normalized(name))
			continue
		}
		some, err := s.remove(ctx, r, what)
		adopted := s.hasNewKeys(what)
		unlock()
		removed = removed || some
		if err == nil && adopted {
			continue // the image has got keys since, which hold its records
		}
		if err != nil || !removed {
			return &runtime.RemoveImageResponse{}, err
		}
		// Without the lock, so that a snapshotter that hangs does not block pulls.
		return &runtime.RemoveImageResponse{}, s.collect(ctx)
	}
}

// removal is what a RemoveImage call removes.
type removal struct {
	entries []imagepin.Entry // all entries of the images
	// id and records belong to an image that containerd's CRI knows by the name and that has no key by the name. Some
	// of the records may belong to other keys.
	id      digest.Digest
	records []string
}

// locks returns the references to lock before a removal: those of entries and records, and the references by digest,
// because calls use images by digest.
func (r removal) locks() []string {
	refs := slices.Clone(r.records)
	for _, e := range r.entries {
		refs = append(refs, e.Ref, byDigest(e).String())
	}
	return distinct(refs)
}

// hasNewKeys reports whether an image has got keys since its removal was decided. An adoption does not wait for a removal.
func (s *remover) hasNewKeys(what removal) bool {
	return slices.ContainsFunc(s.Store.ByID(what.id), func(e imagepin.Entry) bool {
		return !slices.ContainsFunc(what.entries, func(known imagepin.Entry) bool { return known.Key == e.Key })
	})
}

// findRemoval finds every entry of the images that a name matches. If no key has the name, it uses the image that
// containerd's CRI knows by it.
func (s *remover) findRemoval(ctx context.Context, name string) (removal, error) {
	if entries := s.entriesByName(name); len(entries) > 0 {
		return removal{entries: entries}, nil
	}
	known, err := s.images.ImageStatus(untraced(ctx), &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: name}})
	if err != nil {
		return removal{}, err
	}
	if img := known.GetImage(); img != nil {
		id := digest.Digest(img.GetId())
		return removal{
			entries: s.Store.ByID(id), id: id,
			records: slices.Concat(img.GetRepoTags(), img.GetRepoDigests(), []string{img.GetId()}),
		}, nil
	}
	if u, ok := s.Store.FindUntagged(name); ok {
		return removal{id: u.ImageID, records: []string{name}}, nil
	}
	return removal{}, nil
}

// remove removes entries and records. It reports whether it removed any.
func (s *remover) remove(ctx context.Context, r *runtime.RemoveImageRequest, what removal) (removed bool, err error) {
	if len(what.entries) > 0 {
		if removed, err = s.removeEntries(ctx, r, what.entries); err != nil {
			return false, err
		}
	}
	if len(what.records) == 0 {
		return removed, nil
	}
	unaccounted, err := s.Store.RemoveRecords(s.namespaced(ctx), what.id, what.records...)
	return removed || unaccounted, err
}

// collect runs garbage collection, even if the caller has gone.
func (s *remover) collect(ctx context.Context) error {
	return s.Store.Collect(s.namespaced(context.WithoutCancel(ctx)))
}

// entriesByName returns every entry of the images that a name matches.
func (s *remover) entriesByName(name string) []imagepin.Entry {
	var ids []digest.Digest
	for _, e := range s.Store.Find(name) {
		ids = append(ids, e.ImageID)
	}
	slices.Sort(ids)
	var all []imagepin.Entry
	for _, id := range slices.Compact(ids) {
		all = append(all, s.Store.ByID(id)...)
	}
	return all
}

// removeEntries removes the entries that a call selects. removed is false if there are none.
func (s *remover) removeEntries(ctx context.Context, r *runtime.RemoveImageRequest, entries []imagepin.Entry) (removed bool, _ error) {
	if handler := r.GetImage().GetRuntimeHandler(); handler != "" {
		rt, err := s.lookup(handler)
		if err != nil {
			return false, err
		}
		entries = slices.DeleteFunc(entries, func(e imagepin.Entry) bool { return e.Target != rt.Target })
	} else {
		used, err := s.inUse(ctx)
		if err != nil {
			return false, err
		}
		unused := slices.DeleteFunc(slices.Clone(entries), func(e imagepin.Entry) bool {
			return used[imageUse{e.ImageID, e.Target}]
		})
		if len(unused) > 0 {
			entries = unused
		}
	}
	keys := make([]imagepin.Key, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	if _, err := s.Store.Remove(s.namespaced(ctx), keys...); err != nil {
		return false, err
	}
	for _, e := range entries {
		s.answered.forget(e.Ref)
	}
	log.G(ctx).WithField("image", r.GetImage().GetImage()).WithField("keys", len(keys)).Info("removed image")
	return len(keys) > 0, nil
}

// imageUse is an image and the target that uses it.
type imageUse struct {
	id     digest.Digest
	target runtimeplatform.Target
}

// inUse finds the images that the node's containers, sandboxes and image volumes use, in any state.
func (s *remover) inUse(ctx context.Context) (map[imageUse]bool, error) {
	sandboxes, err := s.runtimes.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images in use: %w", err)
	}
	containers, err := s.runtimes.ListContainers(ctx, &runtime.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images in use: %w", err)
	}
	used := make(map[imageUse]bool)
	handlers := make(map[string]string)
	pause := s.Store.Find(s.Settings().SandboxImage)
	for _, sb := range sandboxes.GetItems() {
		handlers[sb.GetId()] = sb.GetRuntimeHandler()
		rt, err := s.Runtimes().Sandbox(sb.GetRuntimeHandler())
		if err != nil {
			continue // its handler is no longer configured
		}
		for _, e := range pause {
			used[imageUse{e.ImageID, rt.Target}] = true
		}
	}
	for _, c := range containers.GetContainers() {
		rt, err := s.Runtimes().Lookup(handlers[c.GetPodSandboxId()])
		if err != nil {
			continue
		}
		for _, name := range []string{c.GetImageRef(), c.GetImageId(), c.GetImage().GetImage()} {
			s.markUsed(used, name, rt.Target)
		}
		volumes, err := s.imageVolumes(ctx, c.GetId())
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil { // one broken container does not keep all images
			log.G(ctx).WithError(err).Warn("image volumes of a container are unknown")
		}
		for _, v := range volumes {
			s.markUsed(used, v.GetImage(), rt.Target)
		}
	}
	return used, nil
}

func (s *remover) markUsed(used map[imageUse]bool, name string, t runtimeplatform.Target) {
	if name == "" {
		return
	}
	for _, e := range s.Store.Find(name) {
		used[imageUse{e.ImageID, t}] = true
	}
}
