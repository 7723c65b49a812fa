package cri

import (
	"testing"
	"time"
)

// TestPruneCountsFromTheExactUse checks that prune knows uses since the start exactly, although they are recorded only to the hour.
func TestPruneCountsFromTheExactUse(t *testing.T) {
	a := newAdoptedNode(t)
	a.base.runtimes = &growingUpstream{}
	e := a.base.Store.ByRef(adoptedTag)[0]
	for _, e := range a.base.Store.ByID(e.ImageID) {
		a.base.uses.Add(e.Key, e.ReadyAt.Add(30*time.Minute))
	}
	for _, test := range []struct {
		before time.Duration // after the image became ready
		want   int
	}{{20 * time.Minute, 0}, {40 * time.Minute, 1}} {
		removed, err := a.Prune(t.Context(), PruneOptions{Before: e.ReadyAt.Add(test.before)})
		if err != nil || len(removed) != test.want {
			t.Errorf("prune of what was used before %s: removed %v, %v", test.before, removed, err)
		}
	}
}
