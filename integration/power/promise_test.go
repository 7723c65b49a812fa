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

// operation is what a machine does when it loses power.
type operation struct {
	name string
	// begin is done before the first cut.
	begin func(m *machine, p *promise)
	steps []step
	// during is the number of cuts between the beginning and the success in each round, after the number of cuts after it.
	during, after int
}

// step is a part of an operation that succeeds by itself.
type step struct {
	do func(m *machine) error
	// may changes the promise to what holds while the step runs, done to what holds after it.
	may, done func(p *promise)
}

// promises returns what holds when some steps of an operation have succeeded and the next one may have begun.
func (o operation) promises(before promise, succeeded int) promise {
	p := before.clone()
	for i, s := range o.steps[:min(succeeded+1, len(o.steps))] {
		if s.may != nil {
			s.may(&p)
		}
		if i < succeeded && s.done != nil {
			s.done(&p)
		}
	}
	return p
}
