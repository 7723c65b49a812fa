package cri

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// useImages makes images ready. Until release is called, no removal and no garbage collection deletes them. It locks them
// when they are ready, because that takes as long as a registry wants, and removals would wait.
func (s *containers) useImages(ctx context.Context, refs []reference.Named, ready func() ([]imagepin.Entry, error)) (release func(), _ error) {
	names := make([]string, len(refs))
	for i, ref := range refs {
		names[i] = ref.String()
	}
	for range maxTries {
		entries, err := ready()
		if err != nil {
			return nil, err
		}
		unlock, err := s.Locks.ForUse(ctx, names...)
		if err != nil {
			return nil, err
		}
		releaseImages, err := s.hold(ctx, entries)
		if err == nil && releaseImages != nil {
			return func() { releaseImages(); unlock() }, nil
		}
		unlock()
		if err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("images kept being removed while they were made ready: %w", errdefs.ErrUnavailable)
}

// maxTries is the maximum number of attempts to make images ready, if their pins change or they are removed meanwhile.
const maxTries = 3

// hold holds images that are locked. release is nil if a call or another tool has removed one.
func (s *containers) hold(ctx context.Context, entries []imagepin.Entry) (release func(), _ error) {
	for _, e := range entries {
		if now, ok := s.Store.Get(e.Key); !ok || now.Root.Digest != e.Root.Digest {
			return nil, nil
		}
	}
	for _, e := range entries {
		if err := s.waitVisible(s.namespaced(ctx), e); err != nil {
			return nil, err
		}
	}
	release, err := s.holdImages(ctx, entries...)
	if err != nil {
		return nil, err
	}
	present, err := s.present(s.namespaced(ctx), entries)
	if err == nil && present {
		return release, nil
	}
	release()
	return nil, err
}

// waitVisible waits until upstream knows an image. If upstream does not know the image ID, it could not read the image
// when it started, and gets no event for content that was repaired since.
func (s *containers) waitVisible(ctx context.Context, e imagepin.Entry) error {
	known, err := s.images.ImageStatus(untraced(ctx), &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: e.ImageID.String()}})
	if err == nil && known.GetImage() == nil {
		for _, name := range []string{e.Ref, e.Record} {
			if img, err := s.Records.Get(ctx, name); err == nil && img.Target.Digest == e.RecordTarget.Digest {
				s.Store.MarkUnsynced(img, e)
			}
		}
	}
	return s.Images.WaitVisible(ctx, e)
}

// present reports whether everything that entries need exists. It removes a key from the index if something is missing.
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
			if _, err := s.Store.EvictBlob(ctx, d); err != nil {
				return false, err
			}
		}
		if _, err := s.Store.EvictSnapshot(ctx, e.Target.Snapshotter, e.ChainID.String()); err != nil {
			return false, err
		}
	}
	return all, nil
}
