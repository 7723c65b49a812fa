package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// An image is pinned, so that kubelet does not remove it, if a record of it has the label of containerd's CRI for that. Other tools write
// the label: an operator with ctr, k3s and RKE2 for images that they import, and the CRI for its own pinned_images. What imagepin itself
// writes for pinned_images has a mark, because the label must end with the setting, and that of another tool must not.

// isPinned reports whether another tool has pinned the image of a record.
func isPinned(labels map[string]string) bool {
	return labels[upstream.PinnedLabel] == upstream.Pinned && !isMarked(labels)
}

// isMarked reports whether the record has the label for pinned images because of pinned_images.
func isMarked(labels map[string]string) bool { return labels[imagepin.PinnedImagesLabel] != "" }

// pinnedLabels returns the labels to write to a record so that it is pinned because of pinned_images, or is not any more. current are its
// labels. The label of another tool stays without a mark.
func pinnedLabels(current map[string]string, pinned bool) map[string]string {
	switch {
	case pinned && !isPinned(current):
		return map[string]string{upstream.PinnedLabel: upstream.Pinned, imagepin.PinnedImagesLabel: upstream.Pinned}
	case !pinned && isMarked(current):
		return map[string]string{upstream.PinnedLabel: deletedLabel, imagepin.PinnedImagesLabel: deletedLabel}
	}
	return nil
}

// notePinned notes whether another tool has pinned the image of a record. The caller holds the lock of the index.
func (x *index) notePinned(img images.Image) {
	if isPinned(img.Labels) {
		x.pinned[img.Name] = struct{}{}
	} else {
		delete(x.pinned, img.Name)
	}
}

// Pinned reports whether a record of an image has a label of another tool so that kubelet does not remove the image.
func (s *reader) Pinned(id digest.Digest) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	if len(s.index.pinned) == 0 {
		return false
	}
	if s.index.hasPinned(id.String()) {
		return true
	}
	for _, e := range s.index.byID[id] {
		if s.index.hasPinned(e.Record) || s.index.hasPinned(e.Ref) {
			return true
		}
	}
	for _, d := range s.index.damaged {
		if d.ImageID == id && (s.index.hasPinned(d.Record) || s.index.hasPinned(d.Ref)) {
			return true
		}
	}
	return false
}

// PinnedFor is [reader.Pinned] for the image of a key, which need not be in the index.
func (s *reader) PinnedFor(e imagepin.Entry) bool {
	s.index.mu.RLock()
	here := s.index.hasPinned(e.Record) || s.index.hasPinned(e.Ref)
	s.index.mu.RUnlock()
	return here || s.Pinned(e.ImageID)
}

func (x *index) hasPinned(record string) bool {
	_, ok := x.pinned[record]
	return ok
}

// endPinned removes the labels for pinned images that imagepin has written for references that are not in pinned_images any more.
func (s *writer) endPinned(ctx context.Context, all []images.Image) error {
	for _, img := range all {
		if !isMarked(img.Labels) || s.inPinnedImages(img.Name) {
			continue
		}
		ended := images.Image{Name: img.Name, Labels: pinnedLabels(img.Labels, false)}
		_, err := s.config.Records.Update(ctx, ended, "labels."+upstream.PinnedLabel, "labels."+imagepin.PinnedImagesLabel)
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove the label %s from image record %s: %w", upstream.PinnedLabel, img.Name, err)
		}
	}
	return nil
}

// inPinnedImages reports whether a record is of a reference that is one of the CRI's pinned images, or of its image.
func (s *presence) inPinnedImages(record string) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	var refs []string
	for _, e := range slices.Concat(s.index.byRecord[record], s.index.byRef[record], s.index.byID[digest.Digest(record)]) {
		refs = append(refs, e.Ref)
	}
	for _, d := range s.index.damaged {
		if d.Record == record || d.Ref == record || d.ImageID.String() == record {
			refs = append(refs, d.Ref)
		}
	}
	return slices.ContainsFunc(refs, func(ref string) bool { return slices.Contains(s.config.PinnedImages(), ref) })
}
