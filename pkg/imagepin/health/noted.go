package health

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/guestpull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// noted are the snapshots whose files are known to be damaged. They stay damaged until they are removed, or forgotten.
type noted struct {
	mu       sync.Mutex
	all      map[store.Snapshot]damaged
	replaced map[store.Snapshot]uint64 // which replacement of the process was the last one of a snapshot's files, from 1
	last     uint64                    // replacement of any snapshot
}

// damaged is a snapshot with damaged files.
type damaged struct {
	why     string
	created time.Time // when containerd created it; a snapshot that replaced it was created later
}

// damageLabel is a label on a snapshot with damaged files, whose repair has begun. Its value describes the damage. A repair that is
// interrupted, or that a container prevents, can leave the snapshot.
const damageLabel = imagepin.LabelPrefix + "damaged"

// maxDamageLabel limits the value of damageLabel, in bytes.
const maxDamageLabel = 1024

// errReplaced reports that the files of a snapshot were replaced while they were compared.
var errReplaced = errors.New("files were replaced while they were compared")

// begin returns when a comparison or a list begins, for note and read.
func (n *noted) begin() (began uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last
}

// note notes that a comparison has found a snapshot damaged. It fails with errReplaced if its files were replaced since that began.
func (n *noted) note(ctx context.Context, snapshotter snapshots.Snapshotter, sn store.Snapshot, why string, began uint64) error {
	info, err := snapshotter.Stat(ctx, sn.ChainID.String())
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.replaced[sn] > began {
		return errReplaced
	}
	n.set(sn, damaged{why, info.Created})
	return nil
}

// set notes that a snapshot is damaged. The caller holds the mutex.
func (n *noted) set(sn store.Snapshot, d damaged) {
	if n.all == nil {
		n.all = make(map[store.Snapshot]damaged)
	}
	n.all[sn] = d
}

// forgetReplaced forgets a snapshot whose files were replaced, also for comparisons that have begun.
func (n *noted) forgetReplaced(sn store.Snapshot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.all, sn)
	if n.replaced == nil {
		n.replaced = make(map[store.Snapshot]uint64)
	}
	n.last++
	n.replaced[sn] = n.last
}

// read notes that a snapshot is damaged if it has the label, or if its files are in guests only and its snapshotter is not for these. It
// forgets the one that it replaced. began is when the list began that it is from: files that were replaced since then are others.
func (n *noted) read(snapshotter string, info snapshots.Info, forGuests bool, began uint64) {
	sn := store.Snapshot{Snapshotter: snapshotter, ChainID: digest.Digest(info.Name)}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.replaced[sn] > began {
		return
	}
	if d, ok := n.all[sn]; ok && !info.Created.Equal(d.created) {
		delete(n.all, sn)
	}
	switch why := info.Labels[damageLabel]; {
	case guestpull.IsEmpty(info) && forGuests:
		delete(n.all, sn) // it is as it should be
	case guestpull.IsEmpty(info):
		n.set(sn, damaged{onlyInGuests, info.Created})
	case why != "":
		n.set(sn, damaged{why, info.Created})
	}
}

// mark labels a snapshot that is known to be damaged.
func (n *noted) mark(ctx context.Context, snapshotter snapshots.Snapshotter, sn store.Snapshot) error {
	d, ok := n.get(sn)
	if !ok {
		return nil
	}
	return setLabels(ctx, snapshotter, sn.ChainID.String(), map[string]string{damageLabel: imagepin.Bound(d.why, maxDamageLabel)})
}

// hasLabel reports whether a snapshot has a label of imagepin.
func hasLabel(i snapshots.Info) bool { return i.Labels[damageLabel] != "" || guestpull.IsEmpty(i) }

func removeLabels(ctx context.Context, snapshotter snapshots.Snapshotter, name string) error {
	return setLabels(ctx, snapshotter, name, map[string]string{damageLabel: "", guestpull.Label: ""})
}

// setLabels sets labels of a snapshot, and removes those with an empty value.
func setLabels(ctx context.Context, snapshotter snapshots.Snapshotter, name string, labels map[string]string) error {
	var fields []string
	for label := range labels {
		fields = append(fields, "labels."+label)
	}
	_, err := snapshotter.Update(ctx, snapshots.Info{Name: name, Labels: labels}, fields...)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// RemoveLabels removes the label of damage from all snapshots, and returns how many had it. With dry it only counts them. It keeps
// [guestpull.Label]: nothing else says that a snapshot has no files.
func RemoveLabels(ctx context.Context, snapshotter snapshots.Snapshotter, dry bool) (n int, _ error) {
	var names []string
	err := snapshotter.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Labels[damageLabel] != "" {
			names = append(names, info.Name)
		}
		return nil
	})
	if err != nil && !errdefs.IsNotFound(err) {
		return 0, err
	}
	for _, name := range names {
		if dry {
			break
		}
		if err := setLabels(ctx, snapshotter, name, map[string]string{damageLabel: ""}); err != nil {
			return n, fmt.Errorf("remove the label of snapshot %s: %w", name, err)
		}
	}
	return len(names), nil
}

// forget forgets a snapshot.
func (n *noted) forget(sn store.Snapshot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.all, sn)
}

func (n *noted) get(sn store.Snapshot) (damaged, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d, ok := n.all[sn]
	return d, ok
}

func (n *noted) empty() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.all) == 0
}

// of describes the damage of a snapshot by itself. It returns "" if none is known.
func (n *noted) of(ctx context.Context, snapshotter snapshots.Snapshotter, sn store.Snapshot) (why string, _ error) {
	d, ok := n.get(sn)
	if !ok {
		return "", nil
	}
	info, err := snapshotter.Stat(ctx, sn.ChainID.String())
	if err != nil && !errdefs.IsNotFound(err) {
		return "", fmt.Errorf("look at snapshot %s in %s: %w", sn.ChainID, sn.Snapshotter, err)
	}
	if err != nil || !info.Created.Equal(d.created) {
		n.forget(sn)
		return "", nil
	}
	return d.why, nil
}

// below describes the known damage of the lowest damaged snapshot of a chain. It returns "" if none is known.
func (n *noted) below(ctx context.Context, snapshotter snapshots.Snapshotter, sn store.Snapshot) (why string, _ error) {
	if n.empty() {
		return "", nil
	}
	for name := sn.ChainID.String(); name != ""; {
		info, err := snapshotter.Stat(ctx, name)
		if errdefs.IsNotFound(err) {
			return why, nil
		}
		if err != nil {
			return "", fmt.Errorf("look at snapshot %s in %s: %w", name, sn.Snapshotter, err)
		}
		level := store.Snapshot{Snapshotter: sn.Snapshotter, ChainID: digest.Digest(name)}
		if d, ok := n.get(level); ok && info.Created.Equal(d.created) {
			why = d.why
		}
		name = info.Parent
	}
	return why, nil
}

// Forget forgets the damaged files of an entry's snapshots, after they were replaced under the same names.
func (c *Checker) Forget(ctx context.Context, e imagepin.Entry) error {
	snapshotter := c.config.Snapshotter(e.Target.Snapshotter)
	for name := e.ChainID.String(); name != ""; {
		info, err := snapshotter.Stat(ctx, name)
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if hasLabel(info) {
			if err := removeLabels(ctx, snapshotter, name); err != nil {
				return fmt.Errorf("remove the label of snapshot %s in %s: %w", name, e.Target.Snapshotter, err)
			}
		}
		c.damage.forgetReplaced(store.Snapshot{Snapshotter: e.Target.Snapshotter, ChainID: digest.Digest(name)}) // what is listed now has no label
		name = info.Parent
	}
	return nil
}
