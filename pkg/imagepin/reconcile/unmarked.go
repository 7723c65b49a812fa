package reconcile

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/layerfiles"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// Boot is the boot of the node's kernel. A power cut loses what was not durable before.
type Boot interface {
	// ID is the ID of the running boot.
	ID() string
	// Compared reports whether all keys without a mark were compared in the running boot. SetCompared records that.
	Compared() (bool, error)
	SetCompared() error
	// Older reports whether a key that was made at a time can be older than the running boot. Before reports whether a time is before
	// the boot by the node's clock.
	Older(at time.Time) bool
	Before(at time.Time) bool
	// Sync makes the snapshots of an image durable.
	Sync(ctx context.Context, e imagepin.Entry) error
}

// unmarked compares the files of images that are not known to be durable, and that are older than the running boot, with their layers.
// Until an image is compared, its keys are not in the index, and calls wait.
type unmarked struct {
	config *Config
	// damaged queues the repair of a key.
	damaged func(context.Context, ...health.Loss)

	waiting atomic.Bool // whether pending has an element
	mu      sync.Mutex
	pending []*comparison
	// compared are the snapshots that were compared.
	compared map[store.Snapshot]bool
	// unverified are the keys that could not be compared, and why.
	unverified map[imagepin.Key]string
}

// comparison is the comparison of the images of one snapshot.
type comparison struct {
	snapshot store.Snapshot
	entries  []imagepin.Entry
	done     chan struct{}
}

const unmarkedReason = "its files are compared with its layers: they may not have been on the disk when the node stopped"

// wanted returns a function that reports whether a key has to be compared before it is ready.
func (u *unmarked) wanted() (func(imagepin.Entry) bool, error) {
	none := func(imagepin.Entry) bool { return false }
	if u.config.Boot == nil {
		return none, nil
	}
	if done, err := u.config.Boot.Compared(); err != nil || done {
		return none, err
	}
	return func(e imagepin.Entry) bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		return e.Durable == "" && e.ChainID != "" && !u.compared[store.SnapshotOf(e)] && u.config.Boot.Older(e.ReadyAt)
	}, nil
}

// hide removes the keys from the index that have to be compared before they are ready, and returns them. They were adopted: load
// leaves out the others.
func (u *unmarked) hide(ctx context.Context) (hidden []imagepin.Entry, _ error) {
	wanted, err := u.wanted()
	if err != nil {
		return nil, err
	}
	for _, img := range u.config.Store.Images() {
		for _, e := range img.Entries {
			if !wanted(e) {
				continue
			}
			now, seen, ok := u.config.Store.See(e.Key)
			if !ok {
				continue
			}
			evicted, err := u.config.Store.EvictSeen(ctx, seen, unmarkedReason)
			if err != nil {
				return nil, err
			}
			if evicted {
				u.config.Store.NoteWaiting(now, unmarkedReason)
				hidden = append(hidden, now)
			}
		}
	}
	return hidden, nil
}

// lateFunc reports whether an image of another tool has to be compared before it is adopted, although all others are compared.
type lateFunc func(ctx context.Context, e imagepin.Entry) (bool, error)

// atStart returns the lateFunc before calls are served. While not all images of earlier boots are compared, none is late: hide looks at
// all.
func (u *unmarked) atStart() (lateFunc, error) {
	if u.config.Boot != nil {
		if compared, err := u.config.Boot.Compared(); err != nil || compared {
			return u.older, err
		}
	}
	return func(context.Context, imagepin.Entry) (bool, error) { return false, nil }, nil
}

// late is the lateFunc while calls are served: an image that stands on a suspect is late, see [health.Checker.SuspectAllBut].
func (u *unmarked) late(ctx context.Context, e imagepin.Entry) (bool, error) {
	if suspected, err := u.config.Checker.Suspected(ctx, e); suspected || err != nil {
		return suspected, err
	}
	return u.older(ctx, e)
}

// older reports whether the highest snapshot of an image is older than the running boot: its snapshotter did not answer before, or its
// runtime handler is new. What another tool pulls while the node runs is not older.
func (u *unmarked) older(ctx context.Context, e imagepin.Entry) (bool, error) {
	if u.config.Boot == nil || e.ChainID == "" {
		return false, nil
	}
	created, err := u.config.Checker.SnapshotCreated(ctx, store.SnapshotOf(e))
	return err == nil && u.config.Boot.Before(created), err
}

// add queues entries.
func (u *unmarked) add(entries ...imagepin.Entry) {
	u.waiting.Store(len(entries) > 0)
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, e := range entries {
		sn := store.SnapshotOf(e)
		i := slices.IndexFunc(u.pending, func(c *comparison) bool { return c.snapshot == sn })
		if i < 0 {
			i = len(u.pending)
			u.pending = append(u.pending, &comparison{snapshot: sn, done: make(chan struct{})})
		}
		u.pending[i].entries = append(u.pending[i].entries, e)
	}
}

// wait waits until the images with entries for which of returns true are compared, and moves them to the front.
func (u *unmarked) wait(ctx context.Context, of func(imagepin.Entry) bool) error {
	u.mu.Lock()
	var first, rest []*comparison
	for _, c := range u.pending {
		if slices.ContainsFunc(c.entries, of) {
			first = append(first, c)
		} else {
			rest = append(rest, c)
		}
	}
	u.pending = slices.Concat(first, rest) // an array of its own: run deletes from it
	u.mu.Unlock()
	for _, c := range first {
		select {
		case <-c.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// run compares all pending images, and then records that all are. It ends with ctx, and lets calls continue then.
func (u *unmarked) run(ctx context.Context) {
	all := true
	for {
		u.mu.Lock()
		if len(u.pending) == 0 {
			u.waiting.Store(false)
			u.mu.Unlock()
			break
		}
		if ctx.Err() != nil {
			for _, c := range u.pending {
				close(c.done)
			}
			u.pending = nil
			u.waiting.Store(false)
			u.mu.Unlock()
			return
		}
		c := u.pending[0]
		u.mu.Unlock()
		done := u.compare(ctx, c)
		all = all && done
		u.mu.Lock()
		if done {
			u.compared[c.snapshot] = true
		}
		u.pending = slices.DeleteFunc(u.pending, func(other *comparison) bool { return other == c })
		u.mu.Unlock()
		close(c.done)
	}
	if u.config.Boot == nil || !all || ctx.Err() != nil {
		return
	}
	if err := u.config.Boot.SetCompared(); err != nil {
		log.G(ctx).WithError(err).Error("cannot record that the images are compared, the next start compares them again")
	}
}

// compare compares the images of a snapshot, and records its keys as ready, or as damaged, and queues their repair. done is false if
// not all are recorded.
func (u *unmarked) compare(ctx context.Context, c *comparison) (done bool) {
	defer func() {
		if p := recover(); p != nil {
			log.G(ctx).Errorf("panic while comparing the files of an image: %v\n%s", p, debug.Stack())
			done = u.verify(ctx, health.Loss{Reason: unmarkedReason, Unverified: true}, c.entries...)
		}
	}()
	found := health.Comparison{}
	var err error
	for _, e := range c.entries { // several manifests can have one snapshot
		if found, err = u.config.Checker.CompareFiles(ctx, e, false); err != nil || found.State != layerfiles.Unverified {
			break
		}
	}
	if ctx.Err() != nil {
		return false
	}
	entry := log.G(ctx).WithField("snapshotter", c.snapshot.Snapshotter).WithField("snapshot", c.snapshot.ChainID)
	switch {
	case err != nil: // for example, a directory is gone
		entry.WithError(err).Warn("cannot compare the files of an image after a boot, verifying it again")
		return u.verify(ctx, health.Loss{Reason: unmarkedReason, Unverified: true}, c.entries...)
	case found.State == layerfiles.Unverified:
		entry.Warnf("the files of an image are unverified after a boot: %s", found.Why)
	}
	durable := ""
	if found.State == layerfiles.Intact {
		if err := u.config.Boot.Sync(ctx, c.entries[0]); errdefs.IsNotImplemented(err) {
			// It is compared again after the next boot.
		} else if err != nil {
			entry.WithError(err).Warn("cannot make an image durable, it is compared again after the next boot")
		} else {
			durable = u.config.Boot.ID()
		}
	}
	done = true
	for _, e := range c.entries {
		e.Durable = durable
		if found.State == layerfiles.Damaged {
			done = u.verify(ctx, health.Loss{Reason: found.Why, DamagedFiles: true}, e) && done
			continue
		}
		if err := u.record(ctx, e); err != nil {
			entry.WithError(err).Warnf("cannot record key %s, verifying it again", e.Key)
			done = u.verify(ctx, health.Loss{Reason: unmarkedReason, Unverified: true}, e) && done
			continue
		}
		if found.State == layerfiles.Unverified {
			u.mu.Lock()
			u.unverified[e.Key] = found.Why
			u.mu.Unlock()
		}
	}
	return done && ctx.Err() == nil
}

// verify records keys as damaged, so that no start believes them before they are verified, and queues their repair. ok is false if one
// could not be recorded.
func (u *unmarked) verify(ctx context.Context, loss health.Loss, entries ...imagepin.Entry) (ok bool) {
	ok = true
	for _, loss.Entry = range entries {
		if _, err := u.config.Store.MarkDamaged(ctx, loss.Entry, loss.Reason); err != nil {
			log.G(ctx).WithError(err).Warnf("cannot record that key %s is damaged", loss.Entry.Key)
			ok = false
		}
		u.damaged(ctx, loss)
	}
	return ok
}

// record records a key as ready.
func (u *unmarked) record(ctx context.Context, e imagepin.Entry) error {
	recorded := false
	err := u.config.Maker.WithLease(ctx, []imagepin.Entry{e}, func(ctx context.Context) (err error) {
		recorded, err = u.config.Store.PutIf(ctx, e, e.Record)
		return err
	})
	if err == nil && !recorded {
		err = fmt.Errorf("a part of it is gone: %w", errdefs.ErrNotFound)
	}
	return err
}

// repositoryOf returns the repository of a reference, or "" for what is none.
func repositoryOf(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ""
	}
	return reference.TrimNamed(named).String()
}

// Unverified says why the files of a key in the index could not be compared after the boot. It returns "" for others.
func (r *Reconciler) Unverified(e imagepin.Entry) (why string) {
	if e.Durable != "" || e.ChainID == "" {
		return ""
	}
	r.unmarked.mu.Lock()
	defer r.unmarked.mu.Unlock()
	return r.unmarked.unverified[e.Key]
}

// WaitCompared waits until an image is compared that is not known to be durable, and moves it to the front. name is a normalized
// reference, of which all images of the repository count, or an image ID. It fails only with the error of ctx.
func (r *Reconciler) WaitCompared(ctx context.Context, name string) error {
	if !r.unmarked.waiting.Load() {
		return nil
	}
	id, err := digest.Parse(name)
	repository := repositoryOf(name)
	return r.unmarked.wait(ctx, func(e imagepin.Entry) bool {
		if err == nil {
			return e.ImageID == id
		}
		return repository != "" && repositoryOf(e.Ref) == repository
	})
}
