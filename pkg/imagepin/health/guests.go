package health

import (
	"context"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/guestpull"
)

// guests are the snapshotters that have, or may get, snapshots without files.
type guests struct {
	mu  sync.Mutex
	all map[string]bool
}

func (g *guests) add(snapshotter string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil {
		g.all = make(map[string]bool)
	}
	g.all[snapshotter] = true
}

func (g *guests) has(snapshotter string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.all[snapshotter]
}

// onlyInGuests is the damage of a snapshot without files that an image needs.
const onlyInGuests = "it was pulled for guests that pull themselves (guest_pull), and not unpacked"

// needsFiles reports whether the snapshots of an entry need files: those of a snapshotter that is not for guests, and those of the sandbox
// image.
func (c *Checker) needsFiles(e imagepin.Entry) bool {
	return !c.config.ForGuests(e.Target.Snapshotter) || c.config.NeedsFiles(e.Ref)
}

// isEmpty reports whether the files of a snapshot of an entry, or of one below it, are in guests only. It reads the labels again: a pull that
// began before guest_pull was set to false commits such snapshots after the list.
func (c *Checker) isEmpty(ctx context.Context, e imagepin.Entry) (bool, error) {
	if !c.config.ForGuests(e.Target.Snapshotter) && !c.guests.has(e.Target.Snapshotter) {
		return false, nil
	}
	empty, err := guestpull.AnyEmpty(ctx, c.config.Snapshotter(e.Target.Snapshotter), e.ChainID.String())
	if errdefs.IsNotFound(err) {
		return false, nil // a snapshot that is gone is another problem
	}
	return empty, err
}
