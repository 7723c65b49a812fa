package pull

import (
	"context"
	"testing"

	"github.com/imagepin/imagepin/internal/ctdtest"
)

// repairCounter counts failed repairs.
type repairCounter struct {
	unobserved
	failed int
}

func (c *repairCounter) RepairFailed() { c.failed++ }

// TestFailedRepairOfABlob checks that a repair of a damaged blob counts as failed if the registry does not have the blob,
// and neither if it is canceled nor if it succeeds.
func TestFailedRepairOfABlob(t *testing.T) {
	d := newDamaged(t)
	c := &repairCounter{}
	p := NewPuller(nil, d.maker, c, nil)
	faults["one bit flipped"](t, d.File(d.img.Config.Digest))
	good := d.blobs
	d.serve(ctdtest.Blobs{}, nil)
	canceled, cancel := context.WithCancel(d.ctx)
	cancel()
	for _, test := range []struct {
		name   string
		ctx    context.Context
		blobs  ctdtest.Blobs
		failed int
	}{
		{"canceled", canceled, nil, 0},
		{"failed", d.ctx, nil, 1},
		{"successful", d.ctx, good, 1},
	} {
		if test.blobs != nil {
			d.serve(test.blobs, nil)
		}
		err := p.RepairBlob(test.ctx, d.entry, d.img.Config.Digest)
		if (err == nil) != (test.name == "successful") || c.failed != test.failed {
			t.Errorf("a repair that is %s: got %v, %d failed repairs, want %d", test.name, err, c.failed, test.failed)
		}
	}
}
