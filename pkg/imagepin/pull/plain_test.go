package pull

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/download"
)

// notedTransfers is a transfer service that notes the ways in which it was asked to unpack.
type notedTransfers struct {
	plain []bool
	err   error // of the first transfer
}

func (s *notedTransfers) Transfer(ctx context.Context, _, _ any, _ ...transfer.Opt) error {
	s.plain = append(s.plain, download.IsPlain(ctx))
	if len(s.plain) == 1 {
		return s.err
	}
	return nil
}

// TestUnpackedOtherwise checks that an image whose content is not damaged and that this process could not unpack is unpacked
// as containerd does, once, and that no other failure leads to a second transfer.
func TestUnpackedOtherwise(t *testing.T) {
	extract := fmt.Errorf("failed to extract layer (application/x sha256:1) to overlayfs as %q: %w", "extract-1", gzip.ErrHeader)
	for name, c := range map[string]struct {
		err          error
		decompresses bool
		plain        []bool
	}{
		"unpacked":               {nil, true, []bool{false}},
		"not unpacked":           {extract, true, []bool{false, true}},
		"unpacked to other data": {errors.New(`wrong diff id "sha256:1" calculated on extraction "sha256:2", desc "sha256:3"`), true, []bool{false, true}},
		"by containerd":          {extract, false, []bool{false}},
		"a wrong digest":         {fmt.Errorf("unexpected commit digest sha256:1, expected sha256:2: %w", errdefs.ErrFailedPrecondition), true, []bool{false}},
		"missing":                {fmt.Errorf("content sha256:1: %w", errdefs.ErrNotFound), true, []bool{false}},
		"the registry":           {RegistryError{fmt.Errorf("failed to extract layer: %w", errdefs.ErrNotFound)}, true, []bool{false}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDamaged(t)
			service := &notedTransfers{err: c.err}
			d.config.Settings = ctdtest.Always(&Settings{Transfer: service, Decompresses: c.decompresses})
			u := newUnpacker(d.config)
			err := u.transferAll(d.ctx, localSource(d.entry.Ref, d.img.Manifest), &destination{}, nil)
			if (err == nil) != (c.err == nil || len(c.plain) == 2) || !slices.Equal(service.plain, c.plain) {
				t.Errorf("transfers %v, %v; want %v", service.plain, err, c.plain)
			}
		})
	}
}
