package apply

import (
	"errors"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestSpaceForTheDifference checks that only layers that the node does not have need space. No disk has space for a large one.
func TestSpaceForTheDifference(t *testing.T) {
	e := newEnv(t, handlers...)
	e.settings.ContentDir = e.node.ContentDir()
	blobs := make(ctdtest.Blobs)
	here, absent := blobs.Add(ocispec.MediaTypeImageLayer, []byte("here")), ctdtest.Blobs{}.Add(ocispec.MediaTypeImageLayer, []byte("absent"))
	leased, done := e.node.Lease(t)
	defer done()
	e.node.Write(leased, t, blobs)
	const large = 1 << 60
	for _, c := range []struct {
		here, absent int64
		full         bool
	}{{large, 1, false}, {1, large, true}} {
		p := &plan{}
		if err := errors.Join(p.layers.set(here.Digest, c.here), p.layers.set(absent.Digest, c.absent)); err != nil {
			t.Fatal(err)
		}
		if err := e.checkSpace(e.ctx, p); hasReason(err, imagepin.NotEnoughSpace) != c.full || !c.full && err != nil {
			t.Errorf("%d bytes are there, %d are not: got %v", c.here, c.absent, err)
		}
	}
}
