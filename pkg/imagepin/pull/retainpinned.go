package pull

import (
	"context"
	"errors"

	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// RetainPinned holds what pins retain and no lease holds yet: what is left to
// do where a kill came after a pin was made or moved, and before its content
// was held. What there is no room for is logged, and stays without.
func (p *Puller) RetainPinned(ctx context.Context) error {
	for _, held := range p.Pins.List() {
		if !held.Retain {
			continue
		}
		ref, err := ParseReference(held.Ref)
		if err != nil {
			return err
		}
		err = p.retainHere(ctx, ref, held.Root.Digest)
		var full *imagepin.Error
		if errors.As(err, &full) && full.Name == imagepin.RetainLimitReached {
			log.G(ctx).WithError(err).WithField("ref", held.Ref).Warn("what a pin is to retain is not held")
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}
