package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/layerfiles"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// Comparison is what is known of the files of an image's snapshots.
type Comparison struct {
	State layerfiles.State
	// Why describes the damage, or says why the files could not be compared.
	Why string
}

// CompareFiles compares the files of an entry's snapshots with its layers in the content store. If deep is set, it reads all files,
// see [layerfiles.Options]. It remembers snapshots that are damaged. It creates a view of each snapshot and removes it again. It fails
// if ctx is done, if a snapshotter fails, and with ErrNotFound if a snapshot is removed meanwhile.
func (c *Checker) CompareFiles(ctx context.Context, e imagepin.Entry, deep bool) (result Comparison, _ error) {
	if e.ChainID == "" {
		return Comparison{State: layerfiles.Intact}, nil
	}
	err := lease.With(ctx, c.config.Leases, lease.Use, func(ctx context.Context) (err error) {
		result, err = c.comparing(deep, nil).entry(ctx, e)
		if err == nil && result.State != layerfiles.Damaged {
			err = c.trust(ctx, e)
		}
		return err
	})
	return result, err
}

// SnapshotDamage describes the damage of the files of the snapshots that an image uses. It returns "" if no damage is known. It reads the
// files of suspects ([Checker.SuspectAllBut]), and those of a snapshot of a damaged key if it is unknown why that is damaged.
func (c *Checker) SnapshotDamage(ctx context.Context, e imagepin.Entry) (why string, _ error) {
	why, err := c.KnownDamage(ctx, e)
	if err != nil || why != "" {
		return why, err
	}
	for _, d := range c.config.Images.Damaged() {
		if e.ChainID == "" || store.SnapshotOf(d.Entry) != store.SnapshotOf(e) || d.DamagedAt.IsZero() {
			continue
		}
		return c.differs(ctx, e, true)
	}
	if suspected, err := c.Suspected(ctx, e); err != nil || !suspected {
		return "", err
	}
	return c.differs(ctx, e, false)
}

// differs describes the damage that CompareFiles finds, or a directory that is gone. It returns "" if there is none, or if a snapshot is
// removed meanwhile.
func (c *Checker) differs(ctx context.Context, e imagepin.Entry, deep bool) (why string, _ error) {
	result, err := c.CompareFiles(ctx, e, deep)
	switch {
	case errdefs.IsNotFound(err) || err == nil && result.State != layerfiles.Damaged:
		return "", nil
	case err == nil || ctx.Err() != nil:
		return result.Why, err
	}
	lerr := lease.With(ctx, c.config.Leases, lease.Use, func(ctx context.Context) (merr error) {
		why, merr = c.missingDirectory(ctx, store.SnapshotOf(e))
		return merr
	})
	if lerr != nil || why == "" {
		return "", err
	}
	return why, nil
}

// KnownDamage is [Checker.SnapshotDamage] that reads no files.
func (c *Checker) KnownDamage(ctx context.Context, e imagepin.Entry) (why string, _ error) {
	if c.needsFiles(e) {
		if empty, err := c.isEmpty(ctx, e); err != nil || empty {
			return onlyInGuests, err
		}
	}
	return c.damage.below(ctx, c.config.Snapshotter(e.Target.Snapshotter), store.SnapshotOf(e))
}

// SnapshotCreated returns when a snapshot was committed.
func (c *Checker) SnapshotCreated(ctx context.Context, sn store.Snapshot) (time.Time, error) {
	info, err := c.config.Snapshotter(sn.Snapshotter).Stat(ctx, sn.ChainID.String())
	if err != nil {
		return time.Time{}, fmt.Errorf("read snapshot %s in %s: %w", sn.ChainID, sn.Snapshotter, err)
	}
	return info.Created, nil
}

// comparing compares the files of snapshots, each snapshot once. Snapshots of one chain are its levels.
type comparing struct {
	checker *Checker
	deep    bool
	rate    func(bytes int64) error // may be nil
	done    map[store.Snapshot]Comparison
}

func (c *Checker) comparing(deep bool, rate func(int64) error) *comparing {
	return &comparing{checker: c, deep: deep, rate: rate, done: make(map[store.Snapshot]Comparison)}
}

// entry compares the snapshots of an entry, again if their files are replaced meanwhile. The context must have a lease.
func (c *comparing) entry(ctx context.Context, e imagepin.Entry) (Comparison, error) {
	for {
		result, err := c.entryOnce(ctx, e)
		if !errors.Is(err, errReplaced) {
			return result, err
		}
	}
}

func (c *comparing) entryOnce(ctx context.Context, e imagepin.Entry) (Comparison, error) {
	began := c.checker.damage.begin()
	if why, err := c.checker.KnownDamage(ctx, e); err != nil || why != "" {
		return Comparison{layerfiles.Damaged, why}, err
	}
	if empty, err := c.checker.isEmpty(ctx, e); err != nil || empty {
		return Comparison{State: layerfiles.Intact}, err // there are no files
	}
	if layerfiles.InUserNamespace() {
		return Comparison{layerfiles.Unverified, "files are not compared in a user namespace"}, nil
	}
	l, err := blobs.LayersOf(ctx, c.checker.config.Content, e)
	if err != nil {
		return Comparison{layerfiles.Unverified, err.Error()}, ctx.Err()
	}
	one := &chain{comparing: c, layers: layers{l}, snapshotter: e.Target.Snapshotter, began: began}
	if !one.whole() {
		err := c.checker.withView(ctx, store.SnapshotOf(e), func(mounts []mount.Mount) error { return one.compare(ctx, mounts) })
		if ctx.Err() != nil {
			return Comparison{}, ctx.Err()
		}
		if err != nil {
			return Comparison{}, fmt.Errorf("compare snapshot %s in %s: %w", e.ChainID, e.Target.Snapshotter, err)
		}
	}
	return one.result(), nil
}

// chain is the comparison of the snapshots of one image.
type chain struct {
	*comparing
	layers
	snapshotter string
	began       uint64 // see [noted.begin]
}

func (c *chain) level(n int) store.Snapshot {
	return store.Snapshot{Snapshotter: c.snapshotter, ChainID: c.ChainIDs[n]}
}

// whole reports whether all levels have been compared.
func (c *chain) whole() bool {
	for n := range c.ChainIDs {
		if _, ok := c.done[c.level(n)]; !ok {
			return false
		}
	}
	return true
}

// result returns the result of all levels: the first damage, or else the first level that is unverified.
func (c *chain) result() Comparison {
	all := Comparison{State: layerfiles.Intact}
	for n := range c.ChainIDs {
		switch one := c.done[c.level(n)]; {
		case one.State == layerfiles.Damaged:
			return one
		case one.State == layerfiles.Unverified && all.State == layerfiles.Intact:
			all = one
		}
	}
	return all
}

// compare compares all levels that have not been compared. mounts are those of the top one.
func (c *chain) compare(ctx context.Context, mounts []mount.Mount) error {
	switch dirs := lowerDirs(mounts); {
	case len(dirs) == len(c.ChainIDs):
		return c.separately(ctx, dirs)
	case len(dirs) > 0:
		c.unverified(0, fmt.Sprintf("its mount has %d directories for %d layers", len(dirs), len(c.ChainIDs)))
		return nil
	}
	if n := len(c.ChainIDs); n > 1 && len(mounts) == n+1 && strings.HasSuffix(mounts[n].Type, "/overlay") {
		return c.devices(ctx, mounts[:n])
	}
	return c.merged(ctx, mounts)
}

// devices compares the file systems of an overlay that has one for each layer, highest first, as that of the EROFS snapshotter.
func (c *chain) devices(ctx context.Context, mounts []mount.Mount) error {
	for n := range c.ChainIDs {
		err := c.separate(ctx, n, func(tree *layerfiles.Tree) error {
			return c.mounted(ctx, tree, n, mounts[len(mounts)-1-n:len(mounts)-n])
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// separately compares the directories of an overlay, which has one for each layer, lowest first.
func (c *chain) separately(ctx context.Context, dirs []string) error {
	for n, dir := range dirs {
		err := c.separate(ctx, n, func(tree *layerfiles.Tree) error { return c.directory(ctx, tree, n, dir, nil) })
		if err != nil {
			return err
		}
	}
	return nil
}

// separate calls compare with the tree of one layer, unless the level has been compared.
func (c *chain) separate(ctx context.Context, n int, compare func(*layerfiles.Tree) error) error {
	if _, ok := c.done[c.level(n)]; ok {
		return nil
	}
	rules := layerfiles.Overlay
	if n == 0 {
		rules = layerfiles.Merge
	}
	tree := layerfiles.NewTree()
	if err := c.apply(ctx, tree, n, rules); err != nil {
		c.done[c.level(n)] = Comparison{layerfiles.Unverified, err.Error()}
		return ctx.Err()
	}
	return compare(tree)
}

// merged compares the directories of snapshots that each have the files of all layers up to theirs.
func (c *chain) merged(ctx context.Context, mounts []mount.Mount) error {
	tree := layerfiles.NewTree()
	for n := range c.ChainIDs {
		if err := c.apply(ctx, tree, n, layerfiles.Merge); err != nil {
			c.unverified(n, err.Error())
			return ctx.Err()
		}
		if _, ok := c.done[c.level(n)]; ok {
			continue
		}
		compare := func(mounts []mount.Mount) error { return c.mounted(ctx, tree, n, mounts) }
		if n == len(c.ChainIDs)-1 {
			return compare(mounts)
		}
		if err := c.checker.withView(ctx, c.level(n), compare); err != nil {
			return err
		}
	}
	return nil
}

// unverified notes why a level and those above it could not be compared.
func (c *chain) unverified(n int, why string) {
	for ; n < len(c.ChainIDs); n++ {
		if _, ok := c.done[c.level(n)]; !ok {
			c.done[c.level(n)] = Comparison{layerfiles.Unverified, why}
		}
	}
}

// apply applies a layer to a tree.
func (c *chain) apply(ctx context.Context, tree *layerfiles.Tree, n int, rules layerfiles.Rules) error {
	return c.layers.read(ctx, c.checker.config.Content, n, c.rate, func(r io.Reader) error { return tree.Apply(ctx, r, rules) })
}

// mounted compares the mounts of a level with a tree. It mounts what is not a directory of the node for that time, read-only.
func (c *chain) mounted(ctx context.Context, tree *layerfiles.Tree, n int, mounts []mount.Mount) error {
	if len(mounts) == 1 && mounts[0].Type == "bind" {
		return c.directory(ctx, tree, n, mounts[0].Source, nil)
	}
	for _, m := range mounts {
		if text := m.Type + m.Source + strings.Join(m.Options, ","); strings.Contains(text, "{{") || strings.ContainsAny(m.Type, "/.") {
			c.done[c.level(n)] = Comparison{layerfiles.Unverified, "its mount of type " + m.Type + " needs containerd's mount manager"}
			return nil
		}
	}
	for _, m := range mounts {
		why, err := brokenFile(m)
		if err != nil {
			c.done[c.level(n)] = Comparison{layerfiles.Unverified, err.Error()}
			return nil
		}
		if why != "" {
			return c.damaged(ctx, n, fmt.Sprintf("snapshot %s: %s", c.ChainIDs[n], why))
		}
	}
	var failed error
	err := mount.WithReadonlyTempMount(ctx, mounts, func(root string) error {
		failed = c.directory(ctx, tree, n, root, func(path string) bool { return path == "/lost+found" })
		return failed
	})
	_, compared := c.done[c.level(n)]
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case failed != nil:
		return failed
	case err != nil && compared:
		log.G(ctx).WithError(err).WithField("snapshot", c.ChainIDs[n]).Warn("cannot unmount snapshot after a check")
	case err != nil:
		c.done[c.level(n)] = Comparison{layerfiles.Unverified, err.Error()}
	}
	return nil
}

// directory compares a directory with a tree.
func (c *chain) directory(ctx context.Context, tree *layerfiles.Tree, n int, dir string, extra func(path string) bool) error {
	level := c.level(n)
	if gone(dir) {
		return c.damaged(ctx, n, fmt.Sprintf("snapshot %s: its directory %s is gone", level.ChainID, dir))
	}
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() || !filepath.IsAbs(dir) {
		c.done[level] = Comparison{layerfiles.Unverified, "its directory " + dir + " cannot be read"}
		return nil
	}
	if layerfiles.Remote(dir) {
		c.done[level] = Comparison{layerfiles.Unverified, "its snapshotter fetches files when they are read"}
		return nil
	}
	result, err := tree.Compare(ctx, dir, layerfiles.Options{Deep: c.deep, Read: c.rate, Extra: extra})
	if err != nil {
		return err
	}
	switch result.State {
	case layerfiles.Damaged:
		return c.damaged(ctx, n, fmt.Sprintf("snapshot %s differs from its layers: %s", level.ChainID, result.Summary()))
	case layerfiles.Unverified:
		c.done[level] = Comparison{layerfiles.Unverified, result.Reason}
	default:
		c.done[level] = Comparison{State: layerfiles.Intact}
	}
	return nil
}

// damaged notes that a level is damaged.
func (c *chain) damaged(ctx context.Context, n int, why string) error {
	level := c.level(n)
	if err := c.checker.damage.note(ctx, c.checker.config.Snapshotter(c.snapshotter), level, why, c.began); err != nil {
		return err
	}
	c.done[level] = Comparison{layerfiles.Damaged, why}
	return nil
}

// lowerDirs returns the directories of an overlay, lowest first. It returns none for other mounts.
func lowerDirs(mounts []mount.Mount) []string {
	if len(mounts) != 1 || mounts[0].Type != "overlay" {
		return nil
	}
	dirs := upstream.LowerDirs(mounts[0].Options)
	slices.Reverse(dirs)
	return dirs
}
