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

// record writes a pin, unless its record would say the same as that of old,
// which is nil for a new pin. A record that is there is changed field by field,
// so that labels of others, and those of a later release, stay.
//
// It fails with [imagepin.PinOfNewerRelease] (ErrNotImplemented) where the
// record is of a newer version, and then changes nothing.
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

// put creates a record, or brings the one that is there into line.
func (s *Store) put(ctx context.Context, id ID, img images.Image) error {
	current, err := s.Images.Get(ctx, img.Name)
	switch {
	case errdefs.IsNotFound(err):
		_, err = s.Images.Create(ctx, img)
	case err != nil:
	default:
		if _, rerr := read(current); errdefs.IsNotImplemented(rerr) {
			return newerError(id, rerr)
		}
		change, fields := difference(current, img)
		if len(fields) == 0 {
			return nil
		}
		_, err = s.Images.Update(ctx, change, fields...)
	}
	if err != nil {
		return fmt.Errorf("write pin %s: %w", id, err)
	}
	return nil
}

// difference gives the fields in which a record is not yet as it should be. Of
// the labels that are not wanted, only proofs go.
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
