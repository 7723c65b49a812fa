package health

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// suspects are the snapshots that were on the node when a list began, and that no image needs that is ready. Nothing says whether their
// files were on the disk when the node stopped: the pull of another tool that a power cut has ended leaves such snapshots, and its lease
// keeps them. A suspect is compared before an image that uses it is recorded as ready.
type suspects struct {
	mu    sync.Mutex
	began time.Time       // when the list began
	known map[string]bool // the snapshotters that were listed; the suspects of others are those that are older than the list
	all   map[store.Snapshot]bool
	// compared are those of other snapshotters that are no suspects any more.
	compared map[store.Snapshot]bool
}

// SuspectAllBut makes the snapshots of a list suspects, except those of the images that are ready, and those below.
func (c *Checker) SuspectAllBut(have *Inventory, ready []imagepin.Entry) {
	needed := make(map[string]map[string]bool)
	for _, e := range ready {
		committed, of := have.snapshots[e.Target.Snapshotter], needed[e.Target.Snapshotter]
		if of == nil {
			of = make(map[string]bool)
			needed[e.Target.Snapshotter] = of
		}
		for name := e.ChainID.String(); name != "" && !of[name]; name = committed[name] {
			of[name] = true
		}
	}
	known, all := make(map[string]bool), make(map[store.Snapshot]bool)
	for snapshotter, committed := range have.snapshots {
		known[snapshotter] = have.unavailable[snapshotter] == nil
		for name := range committed {
			if !needed[snapshotter][name] {
				all[store.Snapshot{Snapshotter: snapshotter, ChainID: digest.Digest(name)}] = true
			}
		}
	}
	s := &c.suspects
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.known, s.all, s.compared = have.at, known, all, make(map[store.Snapshot]bool)
}

// Suspected reports whether a snapshot of an image is a suspect, see [Checker.SuspectAllBut].
func (c *Checker) Suspected(ctx context.Context, e imagepin.Entry) (found bool, err error) {
	err = c.walkSuspects(ctx, e, func(store.Snapshot) (more bool) {
		found = true
		return false
	})
	return found, err
}

// trust notes that the files of an image were compared. Those that cannot be compared are no suspects any more: no other comparison would
// find more.
func (c *Checker) trust(ctx context.Context, e imagepin.Entry) error {
	return c.walkSuspects(ctx, e, func(sn store.Snapshot) (more bool) {
		c.suspects.trust(sn)
		return true
	})
}

// walkSuspects calls fn with the suspects of an image, highest first, until it returns false.
func (c *Checker) walkSuspects(ctx context.Context, e imagepin.Entry, fn func(store.Snapshot) (more bool)) error {
	if e.ChainID == "" || c.suspects.none(e.Target.Snapshotter) {
		return nil
	}
	snapshotter := c.config.Snapshotter(e.Target.Snapshotter)
	for name := e.ChainID.String(); name != ""; {
		info, err := snapshotter.Stat(ctx, name)
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look at snapshot %s in %s: %w", name, e.Target.Snapshotter, err)
		}
		if c.suspects.is(e.Target.Snapshotter, info) && !fn(store.Snapshot{Snapshotter: e.Target.Snapshotter, ChainID: digest.Digest(name)}) {
			return nil
		}
		name = info.Parent
	}
	return nil
}

// none reports whether a snapshotter has no suspect.
func (s *suspects) none(snapshotter string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began.IsZero() || s.known[snapshotter] && len(s.all) == 0
}

func (s *suspects) is(snapshotter string, info snapshots.Info) bool {
	sn := store.Snapshot{Snapshotter: snapshotter, ChainID: digest.Digest(info.Name)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[snapshotter] {
		return s.all[sn]
	}
	return !s.compared[sn] && info.Created.Before(s.began)
}

// isAbandoned reports whether a snapshot is of an unpack that began before the list. A lease of another tool's pull that has ended can keep
// it. If the pull goes on, what it unpacks on a damaged snapshot is of no use.
func (s *suspects) isAbandoned(info snapshots.Info) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.HasPrefix(info.Name, snapshots.UnpackKeyPrefix+"-") && info.Created.Before(s.began)
}

// trust notes that a snapshot was compared.
func (s *suspects) trust(sn store.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.began.IsZero():
	case s.known[sn.Snapshotter]:
		delete(s.all, sn)
	default:
		s.compared[sn] = true
	}
}
