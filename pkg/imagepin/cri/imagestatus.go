package cri

import (
	"context"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// imageStatus answers from the index. If the call identifies its pod, only the target and the pin of that pod count: if
// the image is not ready for them, it is reported as absent, and kubelet pulls. If the call is for an unknown pod, the
// image of any target counts. If the call is for no pod (kubelet's lookup of the image's user, crictl), the answer is the
// last answer to a call for a pod, and otherwise a best guess.
func (s *imageCalls) imageStatus(ctx context.Context, r *runtime.ImageStatusRequest, _ func(context.Context, *runtime.ImageStatusRequest) (*runtime.ImageStatusResponse, error)) (*runtime.ImageStatusResponse, error) {
	name := r.GetImage().GetImage()
	if len(name) > imagepin.MaxReference {
		return &runtime.ImageStatusResponse{}, nil // as upstream does for a name that it cannot parse
	}
	ref := name
	if _, err := digest.Parse(name); err != nil && !s.Store.HasRef(name) { // parsing is a large part of this call
		ref = normalized(name)
	}
	if err := s.waitCompared(ctx, ref); err != nil {
		return nil, err
	}
	c, err := s.callerOf(ctx, r.GetImage(), nil, s.Decider.PerPod(ref))
	if err != nil {
		return nil, err
	}
	e, ok, err := s.statusEntry(ctx, name, ref, c)
	if err != nil {
		return nil, err
	}
	if !ok {
		if u, ok := s.Store.FindUntagged(name); ok {
			return &runtime.ImageStatusResponse{Image: s.untaggedImage(u)}, nil
		}
		return &runtime.ImageStatusResponse{}, nil
	}
	entries := s.Store.ByID(e.ImageID)
	if len(entries) == 0 {
		return &runtime.ImageStatusResponse{}, nil // removed meanwhile
	}
	resp := &runtime.ImageStatusResponse{Image: s.newMessages(1).image(store.Image{ID: e.ImageID, Entries: entries})}
	if r.GetVerbose() {
		info, err := s.verboseInfo(ctx, e)
		if errdefs.IsNotFound(err) {
			return &runtime.ImageStatusResponse{}, nil // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		resp.Info = info
	}
	return resp, nil
}

// statusEntry returns the entry for a caller of ImageStatus. ref is the normalized name. ok is false if the image is not on
// the node, or not ready for the caller's target. It fails as [decide.Decider.Look] does.
func (s *imageCalls) statusEntry(ctx context.Context, name, ref string, c caller) (e imagepin.Entry, ok bool, err error) {
	switch {
	case c.strict:
		e, ok, err = s.entryForCaller(ctx, name, ref, c)
	case c.unknownPod:
		e, ok, err = s.entryForUnknownPod(ctx, name, ref, c)
	default:
		e, ok = s.fallbackEntry(name, ref)
		return e, ok, nil
	}
	if ok {
		s.answered.Add(ref, answer{e, s.isTagged(ref)})
	}
	return e, ok, err
}

// entryForCaller returns the entry of a name for the target and the pin of a caller. Without a pin, it is the entry
// that the node has under the name, unless the tag has to be resolved first.
func (s *imageCalls) entryForCaller(ctx context.Context, name, ref string, c caller) (_ imagepin.Entry, ok bool, _ error) {
	looked, err := s.lookFor(ctx, ref, c)
	if err != nil {
		return imagepin.Entry{}, false, err
	}
	for _, e := range s.Store.Find(name) {
		switch {
		case e.Target != c.runtime.Target:
		case looked.Unpinned:
			return s.entryForNewRevision(ctx, ref, c, e, looked.New)
		case looked.Root == nil || e.Root.Digest == looked.Root.Digest():
			return e, true, nil
		}
	}
	if looked.Root == nil {
		return imagepin.Entry{}, false, nil
	}
	e, ok := s.Store.Get(imagepin.Key{Ref: looked.Root.String(), Target: c.runtime.Target})
	return e, ok, nil
}

// entryForNewRevision returns the entry of a reference for a pod whose revision has no pin, and whose tag has to be resolved first. ok is
// false if kubelet has to pull. e is the entry that the node has. isNew is false if the Kubernetes API, which may have a pin, does not
// answer.
func (s *imageCalls) entryForNewRevision(ctx context.Context, ref string, c caller, e imagepin.Entry, isNew bool) (_ imagepin.Entry, ok bool, _ error) {
	now, err := s.rootWithoutPull(ctx, ref, c.pod, e, isNew)
	if err != nil || now.root == "" {
		return imagepin.Entry{}, false, err
	}
	named, err := reference.ParseNamed(e.Ref)
	if err != nil {
		return imagepin.Entry{}, false, err
	}
	all := decide.OfDigest(s.Store, named, now.root)
	if i := slices.IndexFunc(all, func(e imagepin.Entry) bool { return e.Target == c.runtime.Target }); i >= 0 {
		return all[i], true, nil
	}
	return imagepin.Entry{}, false, nil
}

// entryForUnknownPod returns the entry of a name for a pod that is not known: the digest of a pin that applies to the
// whole node, otherwise the entry that the node has under the name. It does not use the last answer, because the pin of
// another workload can have decided it. An entry of any target is good enough: kubelet cannot restart a container with
// the policy Never if its image is absent, and CreateContainer makes the image ready for the target of the pod.
func (s *imageCalls) entryForUnknownPod(ctx context.Context, name, ref string, c caller) (_ imagepin.Entry, ok bool, _ error) {
	looked, err := s.lookFor(ctx, ref, c)
	if err != nil {
		return imagepin.Entry{}, false, err
	}
	if looked.Root != nil {
		if e, ok := s.anyEntry(looked.Root.String()); ok {
			return e, true, nil
		}
	}
	e, ok := s.anyEntry(name)
	return e, ok, nil
}

// lookFor returns the digest that a normalized name is pinned to for the caller's pod.
func (s *imageCalls) lookFor(ctx context.Context, name string, c caller) (decide.Looked, error) {
	if _, err := digest.Parse(name); err == nil {
		return decide.Looked{}, nil // an image ID has no repository
	}
	return s.Decider.Look(s.namespaced(ctx), name, c.pod)
}

// isTagged reports whether a normalized reference has a record: that of a tag has the keys of the node's own platform.
func (s *imageCalls) isTagged(ref string) bool {
	return slices.ContainsFunc(s.Store.ByRef(ref), func(e imagepin.Entry) bool {
		rt, ok := s.Runtimes().ForTarget(e.Target)
		return ok && rt.Native
	})
}

// fallbackEntry returns the entry of a name for a call that is not for a pod: the last answer if it still exists,
// otherwise any entry. If the record of the name was removed since the last answer, the name is removed, as for containerd's
// CRI. An answer after that, for a pod with a pin, stands.
func (s *imageCalls) fallbackEntry(name, ref string) (imagepin.Entry, bool) {
	if cached, ok := s.answered.Get(ref); ok {
		found := cached.(answer)
		last, removed := found.entry, found.tagged && !s.isTagged(ref)
		for _, key := range []func() string{func() string { return last.Ref }, func() string { return byDigest(last).String() }} {
			if e, ok := s.Store.Get(imagepin.Key{Ref: key(), Target: last.Target}); ok && e.ImageID == last.ImageID && !removed {
				return e, true
			}
		}
		s.answered.Remove(ref)
	}
	return s.anyEntry(name)
}

// anyEntry returns the entry of a name for the default target, otherwise for any target.
func (s *imageCalls) anyEntry(name string) (imagepin.Entry, bool) {
	found := s.Store.Find(name)
	if len(found) == 0 {
		return imagepin.Entry{}, false
	}
	if i := slices.IndexFunc(found, func(e imagepin.Entry) bool { return e.Target == s.Runtimes().Default().Target }); i >= 0 {
		return found[i], true
	}
	return found[0], true
}
