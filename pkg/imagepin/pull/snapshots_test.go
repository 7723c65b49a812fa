package pull

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// damagedSnapshots are snapshots whose repair needs the layer of an image.
type damagedSnapshots struct {
	d     *damaged
	why   string
	calls int
	err   error
}

func (s *damagedSnapshots) SnapshotDamage(context.Context, imagepin.Entry) (string, error) {
	return s.why, nil
}

func (s *damagedSnapshots) repair(ctx context.Context, _ imagepin.Entry) error {
	if s.calls++; s.err != nil {
		return s.err
	}
	if _, err := s.d.Content.Info(ctx, s.d.img.Layer.Digest); err != nil {
		return err
	}
	return blobs.Verify(ctx, s.d.Content, s.d.img.Layer.Digest, s.d.img.Layer.Size, nil)
}

// TestRepairSnapshots repairs the snapshot of an image whose layer is on the node, missing or damaged. Only the layer is fetched, and
// only if it has to be.
func TestRepairSnapshots(t *testing.T) {
	inUse := &imagepin.Error{Reason: imagepin.SnapshotInUse, Class: errdefs.ErrFailedPrecondition, Message: "in use"}
	isInUse := func(err error) bool { return errors.Is(err, inUse) }
	missing := func(t *testing.T, s *damagedSnapshots) {
		noError(t, s.d.Content.Delete(s.d.ctx, s.d.img.Layer.Digest))
		s.d.Collect(t)
	}
	for _, test := range []struct {
		name            string
		change          func(t *testing.T, s *damagedSnapshots)
		calls, requests int
		fails           func(error) bool
	}{
		{"on the node", func(*testing.T, *damagedSnapshots) {}, 1, 0, nil},
		{"missing", missing, 2, 1, nil},
		{"damaged", func(t *testing.T, s *damagedSnapshots) { faults["one bit flipped"](t, s.d.File(s.d.img.Layer.Digest)) }, 2, 1, nil},
		{"gone", func(t *testing.T, s *damagedSnapshots) { missing(t, s); s.d.serve(ctdtest.Blobs{}, nil) }, 1, 1, GoneAtRegistry},
		{"in use", func(_ *testing.T, s *damagedSnapshots) { s.err = inUse }, 1, 0, isInUse},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &damagedSnapshots{d: newDamaged(t)}
			s.d.config.Snapshots, s.d.config.RepairSnapshots = s, s.repair
			m := New(s.d.config)
			ctx, done := s.d.Lease(t)
			defer done()
			src := s.d.sourceFor(ctx, s.d.named(t))
			if repaired, err := m.repairSnapshots(ctx, src, s.d.entry); repaired || err != nil || s.calls > 0 {
				t.Errorf("without damage: repaired %t, %d calls, %v", repaired, s.calls, err)
			}
			s.why = "a file differs"
			test.change(t, s)
			repaired, err := m.repairSnapshots(ctx, src, s.d.entry)
			if repaired != (test.fails == nil) || test.fails == nil && err != nil || test.fails != nil && !test.fails(err) {
				t.Errorf("repaired %t, %v", repaired, err)
			}
			if n := s.d.requestCount(); s.calls != test.calls || n < test.requests || (n > 0) != (test.requests > 0) {
				t.Errorf("got %d calls and %d requests, want %d and %d", s.calls, n, test.calls, test.requests)
			}
		})
	}
}
