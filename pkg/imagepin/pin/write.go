package pin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// record writes the record of a pin if it differs from that of old. old is nil for a new pin. record updates single
// fields of an existing record, so that labels of others and of later releases stay.
//
// It returns [imagepin.PinOfNewerRelease] (ErrNotImplemented) and writes nothing if the record is of a newer version.
func (s *Store) record(ctx context.Context, old *Pin, want Pin) error {
	img, err := want.record()
	if err != nil {
		return err
	}
	if old == nil {
		err = s.CheckReadable(want.ID)
	} else if was, werr := old.record(); werr == nil && sameRecord(was, img) {
		return nil
	}
	if err != nil {
		return err
	}
	failpoint.Reach("pin.write")
	if err := s.put(namespaced(ctx), want.ID, img); err != nil {
		return err
	}
	failpoint.Reach("pin.written")
	return nil
}

// put creates or updates a record.
func (s *Store) put(ctx context.Context, id ID, img images.Image) error {
	current, err := s.config.Images.Get(ctx, img.Name)
	switch {
	case errdefs.IsNotFound(err):
		_, err = s.config.Images.Create(ctx, img)
	case err != nil:
	default:
		if _, rerr := read(current); errdefs.IsNotImplemented(rerr) {
			return newerError(id, rerr)
		}
		change, fields := difference(current, img)
		if len(fields) == 0 {
			return nil
		}
		_, err = s.config.Images.Update(ctx, change, fields...)
	}
	if err != nil {
		return fmt.Errorf("write pin %s: %w", id, err)
	}
	s.noteWrite(img.Name)
	return nil
}

// unrecord deletes the record of a pin if there is one.
func (s *Store) unrecord(ctx context.Context, id ID) error {
	if err := s.config.Images.Delete(namespaced(ctx), id.String()); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove pin %s: %w", id, err)
	}
	s.noteWrite(id.String())
	return nil
}

// difference returns the update that turns current into want. Of the labels that want does not have, it only removes
// proofs.
func difference(current, want images.Image) (change images.Image, fields []string) {
	change = images.Image{Name: want.Name, Target: want.Target, Labels: make(map[string]string)}
	if !sameTarget(current, want) {
		fields = append(fields, "target")
	}
	labels := maps.Clone(want.Labels)
	for label := range current.Labels {
		if _, wanted := labels[label]; !wanted && strings.HasPrefix(label, imagepin.ProofLabelPrefix) {
			labels[label] = ""
		}
	}
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		if current.Labels[label] != labels[label] {
			change.Labels[label] = labels[label]
			fields = append(fields, "labels."+label)
		}
	}
	return change, fields
}

func sameRecord(a, b images.Image) bool {
	return sameTarget(a, b) && maps.Equal(a.Labels, b.Labels)
}

func sameTarget(a, b images.Image) bool {
	return a.Target.Digest == b.Target.Digest && a.Target.MediaType == b.Target.MediaType && a.Target.Size == b.Target.Size
}
