package cri

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// use makes images ready and keeps them until released: no removal takes them
// away, and no garbage collection.
func (s *containers) use(ctx context.Context, refs []reference.Named, ready func() ([]imagepin.Entry, error)) (release func(), _ error) {
	names := make([]string, len(refs))
	for i, ref := range refs {
		names[i] = ref.String()
	}
	unlock, err := s.Locks.ForUse(ctx, names...)
	if err != nil {
		return nil, err
	}
	let, err := s.readyAndHeld(ctx, ready)
	if err != nil {
		unlock()
		return nil, err
	}
	return func() { let(); unlock() }, nil
}

// maxTries is how often images are made ready that other tools remove in between.
const maxTries = 3

// readyAndHeld makes images ready and holds them. One that another tool removes
// before it is held is made ready again.
func (s *containers) readyAndHeld(ctx context.Context, ready func() ([]imagepin.Entry, error)) (release func(), _ error) {
	for range maxTries {
		entries, err := ready()
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if err := s.show(s.namespaced(ctx), e); err != nil {
				return nil, err
			}
		}
		release, err = s.leaseImages(ctx, entries...)
		if err != nil {
			return nil, err
		}
		present, err := s.present(s.namespaced(ctx), entries)
		if err == nil && present {
			return release, nil
		}
		release()
		if err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("images are removed again and again while they are made ready: %w", errdefs.ErrUnavailable)
}

// show waits until the service behind knows an image. Where it does not know its
// ID, it could not read the image when it started, and hears nothing of content
// that was repaired since.
func (s *containers) show(ctx context.Context, e imagepin.Entry) error {
	known, err := s.images.ImageStatus(untraced(ctx), &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: e.ImageID.String()}})
	if err == nil && known.GetImage() == nil {
		for _, name := range []string{e.Ref, e.Record} {
			if img, err := s.Records.Get(ctx, name); err == nil && img.Target.Digest == e.RecordTarget.Digest {
				s.Store.Unsee(img, e)
			}
		}
	}
	return s.Images.Show(ctx, e)
}

// present reports whether what entries need is there. A key that lacks something
// leaves the index.
func (s *containers) present(ctx context.Context, entries []imagepin.Entry) (bool, error) {
	all := true
	for _, e := range entries {
		here, err := s.Store.Present(ctx, e)
		if err != nil {
			return false, err
		}
		if here {
			continue
		}
		all = false
		for _, d := range []digest.Digest{e.RecordTarget.Digest, e.Manifest, e.ImageID} {
			if _, err := s.Store.HideBlob(ctx, d); err != nil {
				return false, err
			}
		}
		if _, err := s.Store.HideSnapshot(ctx, e.Target.Snapshotter, e.ChainID.String()); err != nil {
			return false, err
		}
	}
	return all, nil
}
