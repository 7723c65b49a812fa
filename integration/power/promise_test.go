package power

import (
	"maps"

	"github.com/imagepin/imagepin/integration/power/image"
)

// pulled is a reference that was pulled for a handler.
type pulled struct{ ref, handler string }

// promise is what a machine has said to have, so that it has it after a power loss.
type promise struct {
	images map[pulled]*image.Image
	// locks are the digests of the locks that it may have. Empty is no lock.
	locks []string
	// pins are the digests that each pinned reference may have. Empty is no pin.
	pins map[string][]string
}

func (p promise) clone() promise {
	return promise{maps.Clone(p.images), append([]string(nil), p.locks...), maps.Clone(p.pins)}
}
