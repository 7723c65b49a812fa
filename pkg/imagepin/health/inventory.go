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
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/opencontainers/go-digest"
)

// walkTimeout is how long a snapshotter may take to list its snapshots: 10,000
// take containerd's own a second.
const walkTimeout = 10 * time.Second

// snapshotRefPrefix begins the label by which an image's configuration keeps its snapshot in a snapshotter alive, as
// containerd's unpacker sets it.
const snapshotRefPrefix = "containerd.io/gc.ref.snapshot."

// Inventory is what content and which snapshots there are at one moment.
type Inventory struct {
	blobs     map[digest.Digest][]string     // the snapshotters that a blob names a snapshot in
	snapshots map[string]map[string]struct{} // snapshotter -> committed names
	silent    map[string]error               // snapshotters that do not answer
	files     files
}

// Inventory walks the content and the snapshotters of all handlers. A
// snapshotter that does not answer has no snapshots.
func (c *Checker) Inventory(ctx context.Context) (*Inventory, error) {
	inv := &Inventory{
		blobs:     make(map[digest.Digest][]string),
		snapshots: make(map[string]map[string]struct{}),
		silent:    make(map[string]error),
		files:     newFiles(),
	}
	var (
		walks   sync.WaitGroup
		mu      sync.Mutex
		failure error
	)
	walks.Go(func() { failure = recovered(func() error { return c.walkContent(ctx, inv) }) })
	for _, name := range c.Runtimes().Snapshotters() {
		walks.Go(func() {
			committed, err := c.committed(ctx, name)
			if err != nil {
				log.G(ctx).WithError(err).WithField("snapshotter", name).Error("its images are not available: cannot list snapshots")
			}
			mu.Lock()
			defer mu.Unlock()
			if inv.snapshots[name] = committed; err != nil {
				inv.silent[name] = err
			}
		})
	}
	walks.Wait()
	if failure != nil {
		return nil, fmt.Errorf("walk content: %w", failure)
	}
	return inv, ctx.Err()
}

func (c *Checker) walkContent(ctx context.Context, inv *Inventory) error {
	err := c.Content.Walk(ctx, func(i content.Info) error {
		inv.files.note(i)
		inv.blobs[i.Digest] = nil
		for label := range i.Labels {
			if name, ok := strings.CutPrefix(label, snapshotRefPrefix); ok {
				inv.blobs[i.Digest] = append(inv.blobs[i.Digest], name)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return inv.files.look(ctx, c.Content, false)
}

// recovered makes a panic an error.
func recovered(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return call()
}

// committed walks a snapshotter. One that hangs must not keep the images of the
// others from being served.
func (c *Checker) committed(ctx context.Context, snapshotter string) (map[string]struct{}, error) {
	ctx, cancel := context.WithTimeout(ctx, walkTimeout)
	defer cancel()
	names := make(map[string]struct{})
	err := recovered(func() error {
		return c.Snapshotter(snapshotter).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
			if i.Kind == snapshots.KindCommitted {
				names[i.Name] = struct{}{}
			}
			return nil
		})
	})
	if errdefs.IsNotFound(err) {
		err = nil // it has never had any
	}
	return names, err
}

// HasBlob tells whether the content store has a blob, as a record and as a file.
func (inv *Inventory) HasBlob(d digest.Digest) bool {
	_, ok := inv.blobs[d]
	return ok && inv.files.damaged[d] == nil && inv.files.unread[d] == nil
}

// HasSnapshot tells whether chainID is committed in a snapshotter. An image
// without layers has no chain ID, and needs no snapshot.
func (inv *Inventory) HasSnapshot(snapshotter string, chainID digest.Digest) bool {
	if chainID == "" {
		return true
	}
	_, ok := inv.snapshots[snapshotter][chainID.String()]
	return ok
}

// Missing says what an entry lacks to be ready; nothing where it is.
func (inv *Inventory) Missing(e imagepin.Entry) string {
	switch {
	case !inv.HasBlob(e.RecordTarget.Digest):
		return inv.lacks("index or manifest", e.RecordTarget.Digest)
	case !inv.HasBlob(e.Manifest):
		return inv.lacks("manifest", e.Manifest)
	case !inv.HasBlob(e.ImageID):
		return inv.lacks("configuration", e.ImageID)
	case e.ChainID != "" && inv.silent[e.Target.Snapshotter] != nil:
		return "snapshotter " + e.Target.Snapshotter + " does not answer"
	case !inv.HasSnapshot(e.Target.Snapshotter, e.ChainID):
		return "snapshot " + e.ChainID.String() + " is gone"
	case inv.files.hollow[snapshotOf(e)] != "":
		return inv.files.hollow[snapshotOf(e)]
	}
	return ""
}

// Unpacked returns the images that are kept unpacked, in order.
func (inv *Inventory) Unpacked() []store.Unpacked {
	var all []store.Unpacked
	for d, snapshotters := range inv.blobs {
		for _, name := range snapshotters {
			all = append(all, store.Unpacked{ImageID: d, Snapshotter: name})
		}
	}
	slices.SortFunc(all, func(a, b store.Unpacked) int {
		return cmp.Or(cmp.Compare(a.ImageID, b.ImageID), cmp.Compare(a.Snapshotter, b.Snapshotter))
	})
	return all
}

// Knows reports whether a snapshotter is one of the node's.
func (inv *Inventory) Knows(snapshotter string) bool {
	_, ok := inv.snapshots[snapshotter]
	return ok
}
