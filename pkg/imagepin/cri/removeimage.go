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

// removeImage removes an image with all of its references. A call that names a
// handler removes it for that handler's target. One that does not (kubelet's
// image GC, by ID) removes it from every target that nothing uses, and only
// where all are in use from all of them, as containerd's CRI does. It waits for
// pulls of the image, and for calls that are about to use it.
//
// containerd's CRI is not asked to remove: it would do so beside a pull that has
// begun since.
func (s *remover) removeImage(ctx context.Context, r *runtime.RemoveImageRequest, _ func(context.Context, *runtime.RemoveImageRequest) (*runtime.RemoveImageResponse, error)) (*runtime.RemoveImageResponse, error) {
	name, handler := r.GetImage().GetImage(), r.GetImage().GetRuntimeHandler()
	if handler != "" {
		if _, err := s.lookup(handler); err != nil {
			return nil, err
		}
	}
	held := []string{normalized(name)} // a first pull of it may be under way
	for {
		unlock, err := s.Locks.ForRemoval(ctx, held...)
		if err != nil {
			return nil, err
		}
		what, err := s.meantToRemove(ctx, name)
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
		removed, err := s.remove(ctx, r, what)
		unlock()
		if err != nil || !removed {
			return &runtime.RemoveImageResponse{}, err
		}
		// Without the lock: a snapshotter that hangs must not keep pulls waiting.
		return &runtime.RemoveImageResponse{}, s.collect(ctx)
	}
}

// removal is what a RemoveImage is about.
type removal struct {
	entries []imagepin.Entry // of the images that are meant
	// id and records are of an image that containerd's CRI knows by the name, and
	// no key does. Keys may yet account for some of the records.
	id      digest.Digest
	records []string
}

// locks gives the references to be locked before a removal: those of entries and
// records, and those of the digests, by which calls use them.
func (r removal) locks() []string {
	refs := slices.Clone(r.records)
	for _, e := range r.entries {
		refs = append(refs, e.Ref, byDigest(e).String())
	}
	return distinct(refs)
}

// meantToRemove finds every entry of the images that a name means. Where no key
// has the name it is what containerd's CRI knows by it.
func (s *remover) meantToRemove(ctx context.Context, name string) (removal, error) {
	if entries := s.wholeImages(name); len(entries) > 0 {
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

// remove removes what is meant, and reports whether that was anything.
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

// collect collects what was removed, also for a caller that has gone.
func (s *remover) collect(ctx context.Context) error {
	return s.Store.Collect(s.namespaced(context.WithoutCancel(ctx)))
}

// wholeImages gives every entry of the images that a name means.
func (s *remover) wholeImages(name string) []imagepin.Entry {
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

// removeEntries removes those of an image's entries that a call means. removed is
// false where there are none.
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
			return used[use{e.ImageID, e.Target}]
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
	log.G(ctx).WithField("image", r.GetImage().GetImage()).WithField("keys", len(keys)).Info("image is removed")
	return len(keys) > 0, nil
}

// use is an image in a target that something is made of.
type use struct {
	id     digest.Digest
	target runtimeplatform.Target
}

// inUse finds what the containers, sandboxes and image volumes of the node are
// made of, whatever state they are in.
func (s *remover) inUse(ctx context.Context) (map[use]bool, error) {
	sandboxes, err := s.runtimes.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("which images are in use: %w", err)
	}
	containers, err := s.runtimes.ListContainers(ctx, &runtime.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("which images are in use: %w", err)
	}
	used := make(map[use]bool)
	handlers := make(map[string]string)
	pause := s.Store.Find(s.Settings().SandboxImage)
	for _, sb := range sandboxes.GetItems() {
		handlers[sb.GetId()] = sb.GetRuntimeHandler()
		rt, err := s.Runtimes().Sandbox(sb.GetRuntimeHandler())
		if err != nil {
			continue // of a handler that is no longer configured
		}
		for _, e := range pause {
			used[use{e.ImageID, rt.Target}] = true
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
		status, err := s.runtimes.ContainerStatus(ctx, &runtime.ContainerStatusRequest{ContainerId: c.GetId()})
		if err != nil {
			continue // it has just gone
		}
		for _, m := range status.GetStatus().GetMounts() {
			s.markUsed(used, m.GetImage().GetImage(), rt.Target)
		}
	}
	return used, nil
}

func (s *remover) markUsed(used map[use]bool, name string, t runtimeplatform.Target) {
	if name == "" {
		return
	}
	for _, e := range s.Store.Find(name) {
		used[use{e.ImageID, t}] = true
	}
}
