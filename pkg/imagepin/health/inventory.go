package health

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/guestpull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// walkTimeout limits how long a snapshotter may take to list its snapshots. containerd's own snapshotters list 10,000
// in a second.
const walkTimeout = 10 * time.Second

// Inventory is the content and the snapshots of the node at one moment.
type Inventory struct {
	began       store.Mark
	at          time.Time                    // when it began
	blobs       map[digest.Digest][]string   // digest -> snapshotters in which the blob references a snapshot
	snapshots   map[string]map[string]string // snapshotter -> committed name -> parent
	empty       map[string]map[string]bool   // snapshotter -> committed names without files, if it is for guests
	needsFiles  func(ref string) bool        // whether an image needs files in a snapshotter that has these
	damage      *noted
	unused      map[string]bool  // snapshotters with snapshots of images that no runtime handler uses
	unavailable map[string]error // snapshotters that do not respond
	files       files
}

// Inventory walks the content, the snapshotters of all handlers, and those that images are unpacked in. It treats a snapshotter that does not respond as
// one without snapshots.
func (c *Checker) Inventory(ctx context.Context) (*Inventory, error) {
	inv := &Inventory{
		began:       c.config.Images.Mark(),
		at:          time.Now(),
		blobs:       make(map[digest.Digest][]string),
		snapshots:   make(map[string]map[string]string),
		empty:       make(map[string]map[string]bool),
		needsFiles:  c.config.NeedsFiles,
		damage:      &c.damage,
		unused:      make(map[string]bool),
		unavailable: make(map[string]error),
		files:       newFiles(),
	}
	var (
		walks   sync.WaitGroup
		mu      sync.Mutex
		failure error
	)
	walks.Go(func() { failure = recovered(func() error { return c.walkContent(ctx, inv) }) })
	for _, name := range c.config.Runtimes().Snapshotters() {
		walks.Go(func() {
			committed, empty, err := c.committed(ctx, name)
			if err != nil {
				log.G(ctx).WithError(err).WithField("snapshotter", name).Error("cannot list snapshots, images of this snapshotter are unavailable")
			}
			mu.Lock()
			defer mu.Unlock()
			if inv.snapshots[name], inv.empty[name] = committed, empty; err != nil {
				inv.unavailable[name] = err
			}
		})
	}
	walks.Wait()
	if failure != nil {
		return nil, fmt.Errorf("walk content: %w", failure)
	}
	c.walkUnused(ctx, inv)
	return inv, ctx.Err()
}

// walkUnused walks the snapshotters that images are unpacked in and that no runtime handler uses, if they are loaded.
// One of them was the default before the configuration changed.
func (c *Checker) walkUnused(ctx context.Context, inv *Inventory) {
	for _, u := range inv.Unpacked() {
		name := u.Snapshotter
		if _, walked := inv.snapshots[name]; walked || c.config.Snapshotter(name) == nil {
			continue
		}
		committed, _, err := c.committed(ctx, name)
		if errdefs.IsInvalidArgument(err) {
			continue // it is not loaded
		}
		if err != nil {
			log.G(ctx).WithError(err).WithField("snapshotter", name).Error("cannot list snapshots, images of this snapshotter are unavailable")
			inv.unavailable[name] = err
		}
		inv.snapshots[name], inv.unused[name] = committed, true
	}
}

func (c *Checker) walkContent(ctx context.Context, inv *Inventory) error {
	err := c.config.Content.Walk(ctx, func(i content.Info) error {
		inv.files.note(i)
		inv.blobs[i.Digest] = snapshottersOf(i)
		return nil
	})
	if err != nil {
		return err
	}
	return inv.files.check(ctx, c.config.Content, false)
}

// recovered converts a panic to an error.
func recovered(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return call()
}

// committed returns the committed snapshots of a snapshotter, and those without files, if it is for guests. It has a timeout, so that a
// snapshotter that hangs does not make the images of others unavailable.
func (c *Checker) committed(ctx context.Context, snapshotter string) (names map[string]string, empty map[string]bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, walkTimeout)
	defer cancel()
	began, forGuests := c.damage.begin(), c.config.ForGuests(snapshotter)
	names, empty = make(map[string]string), make(map[string]bool)
	err = recovered(func() error {
		return c.config.Snapshotter(snapshotter).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
			if i.Kind == snapshots.KindCommitted {
				names[i.Name] = i.Parent
				if guestpull.IsEmpty(i) {
					empty[i.Name] = true
				}
				c.damage.read(snapshotter, i, forGuests, began)
			}
			return nil
		})
	})
	if errdefs.IsNotFound(err) {
		err = nil // the snapshotter has never had a snapshot
	}
	if forGuests || len(empty) > 0 {
		c.guests.add(snapshotter)
	}
	if !forGuests {
		empty = nil // they are noted as damaged
	}
	return names, empty, err
}

// HasBlob reports whether the content store has a record of a blob and its file.
func (inv *Inventory) HasBlob(d digest.Digest) bool {
	_, ok := inv.blobs[d]
	return ok && inv.files.damaged[d] == nil && inv.files.unread[d] == nil
}

// HasSnapshot reports whether chainID is committed in a snapshotter. It reports true for an empty chainID, because an
// image without layers needs no snapshot.
func (inv *Inventory) HasSnapshot(snapshotter string, chainID digest.Digest) bool {
	if chainID == "" {
		return true
	}
	_, ok := inv.snapshots[snapshotter][chainID.String()]
	return ok
}

// Missing describes what an entry lacks to be ready. It returns "" for an entry that is ready.
func (inv *Inventory) Missing(e imagepin.Entry) string {
	if problem := inv.contentProblem(e); problem != "" {
		return problem
	}
	switch {
	case e.ChainID != "" && inv.unavailable[e.Target.Snapshotter] != nil:
		return "snapshotter " + e.Target.Snapshotter + " does not respond"
	case e.ChainID != "" && !inv.walked(e.Target.Snapshotter):
		return "snapshotter " + e.Target.Snapshotter + " is not loaded, or has no snapshot of it"
	case !inv.HasSnapshot(e.Target.Snapshotter, e.ChainID):
		return "snapshot " + e.ChainID.String() + " is gone"
	case inv.files.noDirectory[store.SnapshotOf(e)] != "":
		return inv.files.noDirectory[store.SnapshotOf(e)]
	}
	return inv.filesProblem(e)
}

// filesProblem describes the damage of the files of an entry's snapshots. It returns "" if none is known.
func (inv *Inventory) filesProblem(e imagepin.Entry) (why string) {
	empty := inv.empty[e.Target.Snapshotter]
	if len(empty) == 0 && inv.damage.empty() {
		return ""
	}
	needsFiles, committed := inv.needsFiles(e.Ref), inv.snapshots[e.Target.Snapshotter]
	for name := e.ChainID.String(); name != ""; name = committed[name] {
		if needsFiles && empty[name] {
			why = onlyInGuests
		}
		if d, ok := inv.damage.get(store.Snapshot{Snapshotter: e.Target.Snapshotter, ChainID: digest.Digest(name)}); ok {
			why = d.why
		}
	}
	return why
}

// Unpacked returns the images whose configuration references a snapshot, in order.
func (inv *Inventory) Unpacked() []store.Unpacked { return unpacked(inv.blobs) }

// Unpacked returns the images whose configuration references a snapshot, in order. It reads containerd's records of
// content, and no files.
func (c *Checker) Unpacked(ctx context.Context) ([]store.Unpacked, error) {
	blobs := make(map[digest.Digest][]string)
	err := c.config.Content.Walk(ctx, func(i content.Info) error {
		if snapshotters := snapshottersOf(i); len(snapshotters) > 0 {
			blobs[i.Digest] = snapshotters
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("walk content: %w", err)
	}
	return unpacked(blobs), nil
}

// snapshottersOf returns the snapshotters in which a blob references a snapshot.
func snapshottersOf(i content.Info) (names []string) {
	for label := range i.Labels {
		if name, ok := strings.CutPrefix(label, upstream.SnapshotRef); ok {
			names = append(names, name)
		}
	}
	return names
}

func unpacked(blobs map[digest.Digest][]string) []store.Unpacked {
	var all []store.Unpacked
	for d, snapshotters := range blobs {
		for _, name := range snapshotters {
			all = append(all, store.Unpacked{ImageID: d, Snapshotter: name})
		}
	}
	slices.SortFunc(all, func(a, b store.Unpacked) int {
		return cmp.Or(cmp.Compare(a.ImageID, b.ImageID), cmp.Compare(a.Snapshotter, b.Snapshotter))
	})
	return all
}

func (inv *Inventory) walked(snapshotter string) bool {
	_, ok := inv.snapshots[snapshotter]
	return ok
}

// Knows reports whether a runtime handler uses a snapshotter.
func (inv *Inventory) Knows(snapshotter string) bool {
	return inv.walked(snapshotter) && !inv.unused[snapshotter]
}

// Responds reports whether a snapshotter has listed all its snapshots.
func (inv *Inventory) Responds(snapshotter string) bool { return inv.unavailable[snapshotter] == nil }
