package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/reconcile"
)

// blockedHealth repairs a finding once nothing blocks it.
type blockedHealth struct {
	Health
	err     error
	blocked bool
	lowest  digest.Digest
}

func (h *blockedHealth) LowestUnusable(context.Context, imagepin.Entry) (digest.Digest, error) {
	return h.lowest, nil
}

func (h *blockedHealth) Repair(context.Context, health.Finding) (reconcile.Repaired, error) {
	if h.blocked {
		return reconcile.Kept, h.err
	}
	return reconcile.Unpacked, nil
}

// exitedOf removes what blocks a repair.
type exitedOf struct {
	health *blockedHealth
	from   []digest.Digest
	none   bool
	err    error
}

func (e *exitedOf) RemoveExited(_ context.Context, _ imagepin.Entry, from digest.Digest) ([]string, error) {
	e.from = append(e.from, from)
	if e.none {
		return nil, e.err
	}
	e.health.blocked = false
	return []string{"container app of pod shop/cart-0 (1)"}, e.err
}

// TestRemoveExited checks that a repair removes exited containers only if it is to, and only if these block it.
func TestRemoveExited(t *testing.T) {
	const top, low = digest.Digest("sha256:top"), digest.Digest("sha256:low")
	notReplaceable := &imagepin.Error{Reason: imagepin.SnapshotNotReplaceable, Class: errdefs.ErrNotImplemented}
	files := health.Loss{Entry: imagepin.Entry{ChainID: top}, DamagedFiles: true}
	for _, test := range []struct {
		name     string
		loss     health.Loss
		err      error
		do       repairs
		none     bool
		from     []digest.Digest
		repaired bool
	}{
		{name: "not asked for", loss: files, err: notReplaceable, do: repairs{all: true}},
		{name: "no repair", loss: files, err: notReplaceable, do: repairs{removeExited: true}},
		{name: "files", loss: files, err: notReplaceable, do: repairs{true, true}, from: []digest.Digest{low}, repaired: true},
		{name: "nothing to remove", loss: files, err: notReplaceable, do: repairs{true, true}, from: []digest.Digest{low}, none: true},
		{
			name: "a running container", loss: files, do: repairs{true, true},
			err: &imagepin.Error{Reason: imagepin.SnapshotInUse, Class: errdefs.ErrFailedPrecondition},
		},
		{
			name: "no directory", loss: health.Loss{Entry: imagepin.Entry{ChainID: top}, MissingDirectory: true}, do: repairs{true, true},
			err: fmt.Errorf("a container uses it: %w", errdefs.ErrFailedPrecondition), from: []digest.Digest{low}, repaired: true,
		},
		{name: "another error", loss: files, do: repairs{true, true}, err: errors.New("the disk is full")},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := &blockedHealth{err: test.err, blocked: true, lowest: low}
			e := &exitedOf{health: h, none: test.none}
			s := New(Config{Health: h, Exited: e})
			resp := s.report(t.Context(), health.Report{Findings: []health.Finding{{Kind: health.LostKey, Loss: test.loss}}}, test.do, nil)
			f := resp.GetFindings()[0]
			if !slices.Equal(e.from, test.from) || f.GetRepaired() != test.repaired || (len(f.GetRemoved()) == 1) != test.repaired || (f.GetError() != "") == (test.repaired || !test.do.all) {
				t.Errorf("removed from %q, want %q; got %v", e.from, test.from, f)
			}
		})
	}
}
