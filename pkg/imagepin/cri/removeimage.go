package cri

import (
	"cmp"
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
// use, it removes the image from all of them, as containerd's CRI does. It waits for calls that are about to use the image,
// and for pulls that record it, but for no registry.
//
// It does not call RemoveImage of containerd's CRI, which would not wait for them.
func (s *remover) removeImage(ctx context.Context, r *runtime.RemoveImageRequest, _ func(context.Context, *runtime.RemoveImageRequest) (*runtime.RemoveImageResponse, error)) (*runtime.RemoveImageResponse, error) {
	if len(r.GetImage().GetImage()) > imagepin.MaxReference {
		return &runtime.RemoveImageResponse{}, nil // no image has such a name
	}
	_, err := s.removeNamed(ctx, selection{name: r.GetImage().GetImage(), handler: r.GetImage().GetRuntimeHandler()})
	if err != nil {
		return nil, err
	}
	return &runtime.RemoveImageResponse{}, nil
}

// selection selects what a removal removes: the images that a name matches, for the target of a handler if it is not
// empty.
type selection struct {
	name, handler string
	// unused fails the removal if a container uses what it would remove.
	unused bool
}

// removeNamed removes what a selection selects, and returns the removed entries.
func (s *remover) removeNamed(ctx context.Context, sel selection) (removed []imagepin.Entry, _ error) {
	if sel.name == "" { // for containerd's CRI, it is the only image of a node
		_, err := imagepin.ParseReference(sel.name)
		return nil, err
	}
	if sel.handler != "" {
		if _, err := s.lookup(sel.handler); err != nil {
			return nil, err
		}
	}
	held := []string{normalized(sel.name)} // a call may be about to use an image by this name
	collect := false
	for {
		unlock, err := s.Locks.ForRemoval(ctx, held...)
		if err != nil {
			return nil, err
		}
		what, err := s.findRemoval(ctx, sel.name)
		if err != nil {
			unlock()
			return nil, err
		}
		locks := what.locks()
		if missing := slices.ContainsFunc(locks, func(ref string) bool { return !slices.Contains(held, ref) }); missing {
			unlock()
			held = append(locks, normalized(sel.name))
			continue
		}
		entries, some, err := s.remove(ctx, sel, what)
		adopted := s.hasNewKeys(what)
		unlock()
		removed, collect = append(removed, entries...), collect || some
		if err == nil && adopted {
			continue // the image has got keys since, which hold its records
		}
		if err != nil || !collect {
			return removed, err
		}
		// Without the lock, so that a snapshotter that hangs does not block pulls.
		return removed, s.collect(ctx)
	}
}

// removal is what a RemoveImage call removes.
type removal struct {
	entries []imagepin.Entry // all entries of the images, also damaged ones
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
			entries: s.allByID(id), id: id,
			records: slices.Concat(img.GetRepoTags(), img.GetRepoDigests(), []string{img.GetId()}),
		}, nil
	}
	if u, ok := s.Store.FindUntagged(name); ok {
		return removal{id: u.ImageID, records: []string{name}}, nil
	}
	return removal{}, nil
}

// remove removes entries and records. It returns the removed entries, and reports whether it removed anything.
func (s *remover) remove(ctx context.Context, sel selection, what removal) (removed []imagepin.Entry, some bool, err error) {
	if len(what.entries) > 0 {
		if removed, err = s.removeSelected(ctx, sel, what.entries); err != nil {
			return nil, false, err
		}
	}
	if len(what.records) == 0 {
		return removed, len(removed) > 0, nil
	}
	unkeyed, err := s.Store.RemoveRecords(s.namespaced(ctx), what.id, what.records...)
	return removed, len(removed) > 0 || unkeyed, err
}

// collect runs garbage collection, even if the caller has gone.
func (s *remover) collect(ctx context.Context) error {
	return s.Store.Collect(s.namespaced(context.WithoutCancel(ctx)))
}

// entriesByName returns every entry of the images that a name matches, also damaged ones.
func (s *remover) entriesByName(name string) []imagepin.Entry {
	var ids []digest.Digest
	for _, e := range s.Store.Find(name) {
		ids = append(ids, e.ImageID)
	}
	for _, d := range s.findDamaged(name) {
		ids = append(ids, d.ImageID)
	}
	slices.Sort(ids)
	var all []imagepin.Entry
	for _, id := range slices.Compact(ids) {
		all = append(all, s.allByID(id)...)
	}
	return all
}

// allByID returns every entry of an image, also damaged ones.
func (s *remover) allByID(id digest.Digest) []imagepin.Entry {
	all := s.Store.ByID(id)
	for _, d := range s.Store.FindDamaged(id.String()) {
		all = append(all, d.Entry)
	}
	return all
}

// imageIDs returns the IDs of all images, also of damaged ones.
func (s *remover) imageIDs() []digest.Digest {
	var ids []digest.Digest
	for _, img := range s.Store.Images() {
		ids = append(ids, img.ID)
	}
	for _, d := range s.Store.Damaged() {
		ids = append(ids, d.ImageID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// removeSelected removes the entries that a selection selects, and returns them.
func (s *remover) removeSelected(ctx context.Context, sel selection, entries []imagepin.Entry) ([]imagepin.Entry, error) {
	if sel.handler != "" {
		rt, err := s.lookup(sel.handler)
		if err != nil {
			return nil, err
		}
		entries = slices.DeleteFunc(entries, func(e imagepin.Entry) bool { return e.Target != rt.Target })
	}
	if sel.handler == "" || sel.unused {
		used, err := s.inUse(ctx, sel.unused, make(volumesOf))
		if err != nil {
			return nil, err
		}
		unused := slices.DeleteFunc(slices.Clone(entries), func(e imagepin.Entry) bool { return used.by(e) != "" })
		if sel.unused && len(unused) < len(entries) {
			return nil, imageInUse(entries, used)
		}
		if len(unused) > 0 {
			entries = unused
		}
	}
	if err := s.removeEntries(ctx, entries); err != nil {
		return nil, err
	}
	log.G(ctx).WithField("image", sel.name).WithField("keys", len(entries)).Info("removed image")
	return entries, nil
}

// removeEntries removes entries. The caller holds their locks.
func (s *remover) removeEntries(ctx context.Context, entries []imagepin.Entry) error {
	keys := make([]imagepin.Key, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	if _, err := s.Store.Remove(s.namespaced(ctx), keys...); err != nil {
		return err
	}
	if _, err := s.Store.DropDamaged(s.namespaced(ctx), keys...); err != nil {
		return err
	}
	for _, e := range entries {
		s.answered.Remove(e.Ref)
	}
	return nil
}

// imageUse is an image and the target that uses it.
type imageUse struct {
	id     digest.Digest
	target runtimeplatform.Target
}

// uses are images in use, each with one of its users.
type uses map[imageUse]string

// anyTarget is the target of a user whose runtime handler is no longer configured.
var anyTarget runtimeplatform.Target

// by returns what uses an entry; empty if nothing does.
func (u uses) by(e imagepin.Entry) string {
	return cmp.Or(u[imageUse{e.ImageID, e.Target}], u[imageUse{e.ImageID, anyTarget}])
}

// volumesOf are the image volumes of containers, by container ID. A container keeps those that it was created with.
type volumesOf map[string][]*runtime.ImageSpec

// inUse finds the images that the node's containers, sandboxes and image volumes use, in any state. With keep, what cannot
// be known counts as used: it fails if the volumes of a container are unknown, and a user without a configured handler uses
// its image for every target. Without it, neither keeps images, so that kubelet can free disk space. known has the volumes of
// an earlier call, and receives those of this one.
func (s *remover) inUse(ctx context.Context, keep bool, known volumesOf) (uses, error) {
	sandboxes, err := s.runtimes.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images in use: %w", err)
	}
	containers, err := s.runtimes.ListContainers(ctx, &runtime.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images in use: %w", err)
	}
	used := make(uses)
	handlers, pods := make(map[string]string), make(map[string]string)
	pause := s.Store.Find(s.Settings().SandboxImage)
	for _, sb := range sandboxes.GetItems() {
		handlers[sb.GetId()] = sb.GetRuntimeHandler()
		pods[sb.GetId()] = sb.GetMetadata().GetNamespace() + "/" + sb.GetMetadata().GetName()
		rt, err := s.Runtimes().Sandbox(sb.GetRuntimeHandler())
		if err != nil && !keep {
			continue // its handler is no longer configured
		}
		for _, e := range pause {
			used[imageUse{e.ImageID, rt.Target}] = "the sandbox of pod " + pods[sb.GetId()]
		}
	}
	for _, c := range containers.GetContainers() {
		rt, err := s.Runtimes().Lookup(handlers[c.GetPodSandboxId()])
		if err != nil && !keep {
			continue
		}
		user := "container " + c.GetMetadata().GetName() + " of pod " + pods[c.GetPodSandboxId()]
		for _, name := range []string{c.GetImageRef(), c.GetImageId(), c.GetImage().GetImage()} {
			s.markUsed(used, name, rt.Target, user)
		}
		volumes, ok := known[c.GetId()]
		if !ok {
			if volumes, err = s.imageVolumes(ctx, c.GetId()); err == nil {
				known[c.GetId()] = volumes
			}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil && keep {
			return nil, fmt.Errorf("list images in use: %s: %w", user, err)
		}
		if err != nil { // one broken container does not keep all images
			log.G(ctx).WithError(err).Warn("image volumes of a container are unknown")
		}
		for _, v := range volumes {
			s.markUsed(used, v.GetImage(), rt.Target, user)
		}
	}
	return used, nil
}

func (s *remover) markUsed(used uses, name string, t runtimeplatform.Target, user string) {
	for _, e := range s.Store.Find(name) {
		used[imageUse{e.ImageID, t}] = user
	}
	for _, d := range s.findDamaged(name) {
		used[imageUse{d.ImageID, t}] = user
	}
}
