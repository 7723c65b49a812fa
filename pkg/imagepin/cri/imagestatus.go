package cri

import (
	"context"
	"slices"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// imageStatus answers from the index. A call that says whose pod it is for is
// answered for that pod's target alone: where the image is not ready for it,
// it is not present, and kubelet pulls. A call that says nothing (kubelet's
// look-up of the image's user, crictl) is answered with what is most likely
// meant.
func (s *Service) imageStatus(ctx context.Context, r *runtime.ImageStatusRequest, _ func(context.Context, *runtime.ImageStatusRequest) (*runtime.ImageStatusResponse, error)) (*runtime.ImageStatusResponse, error) {
	rt, strict, err := s.imageRuntime(ctx, r.GetImage(), nil)
	if err != nil {
		return nil, err
	}
	name := r.GetImage().GetImage()
	found := s.Store.Find(name)
	if strict {
		s.asked.note(normalized(name), rt.Target)
		found = slices.DeleteFunc(found, func(e imagepin.Entry) bool { return e.Target != rt.Target })
	}
	if len(found) == 0 {
		if u, ok := s.Store.FindUntagged(name); ok {
			return &runtime.ImageStatusResponse{Image: untaggedImage(u)}, nil
		}
		if !strict {
			s.asked.forget(normalized(name))
		}
		return &runtime.ImageStatusResponse{}, nil
	}
	e := s.likeliest(name, found)
	entries := s.Store.ByID(e.ImageID)
	if len(entries) == 0 {
		return &runtime.ImageStatusResponse{}, nil // it has just gone
	}
	resp := &runtime.ImageStatusResponse{Image: s.toCRI(store.Image{ID: e.ImageID, Entries: entries})}
	if r.GetVerbose() {
		info, err := s.verboseInfo(ctx, e)
		if errdefs.IsNotFound(err) {
			return &runtime.ImageStatusResponse{}, nil // it has just gone
		}
		if err != nil {
			return nil, err
		}
		resp.Info = info
	}
	return resp, nil
}

// likeliest is the entry that a name without a target means: the target last
// asked for under it, else the default one, else any.
func (s *Service) likeliest(name string, found []imagepin.Entry) imagepin.Entry {
	last, asked := s.asked.get(normalized(name))
	for _, e := range found {
		if asked && e.Target == last {
			return e
		}
	}
	for _, e := range found {
		if e.Target == s.Runtimes.Default().Target {
			return e
		}
	}
	return found[0]
}
