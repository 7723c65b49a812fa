package replace

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
)

// Config has the dependencies of a Replacer. All fields are required, except Users and Released.
type Config struct {
	Content     content.Store
	Leases      leases.Manager
	Snapshotter func(name string) snapshots.Snapshotter
	// Applier returns what unpacks layers in a snapshotter. ok is false if nothing does.
	Applier func(snapshotter string) (_ diff.Applier, _ []diff.ApplyOpt, ok bool)
	// Sync returns when all committed snapshots of a snapshotter are on the disk.
	Sync func(ctx context.Context, snapshotter string) error
	// Locks keeps calls that use images away. [pull.Locks] implements it.
	Locks Locks
	// Entries returns all keys of the node, ready or damaged.
	Entries func() []imagepin.Entry
	// Users returns what may run now or later on snapshots: the containers that have not exited, and the sandboxes that are
	// ready. It may be nil: nothing is known.
	Users func(ctx context.Context) ([]User, error)
	// Released is called when snapshots were removed, whose files the next garbage collection deletes. It may be nil.
	Released func()
}

// Locks separates uses of images from removals.
type Locks interface {
	ForRemoval(ctx context.Context, refs ...string) (unlock func(), _ error)
}

// User is a container or a sandbox.
type User struct {
	// Snapshot is the name of its snapshot.
	Snapshot string
	// Name describes it, as in "container app of pod shop/cart-0".
	Name string
	// Pod is the ID of its sandbox, which is that of a sandbox itself.
	Pod string
}

// Replacer replaces damaged snapshots. It is safe for concurrent use.
type Replacer struct {
	config Config
	settle time.Duration
}

// settle is how long a mount that no container explains is waited for. A process that enters a new mount namespace, as a
// container does, has a copy of all mounts until it has left its old root.
const settle = time.Second

// New returns a Replacer.
func New(c Config) *Replacer { return &Replacer{config: c, settle: settle} }

// Replace unpacks the layers of an entry again, from the one with the chain ID from up, makes them durable, and exchanges the
// directories of their snapshots with the new ones. If from is empty, it replaces all layers. A kill at any moment leaves each
// directory as it was or as it is to be. The layers must be in the content store. Nobody may remove the snapshots meanwhile.
//
// It fails with ErrNotFound if a layer is not in the content store, with ErrInvalidArgument if from is no layer of the image, and with
// the error of the disk or of the snapshotter. Errors of its own are [imagepin.Error]: ContentCorrupt (ErrFailedPrecondition) for a
// layer that does not unpack to what the configuration names; SnapshotInUse (ErrFailedPrecondition) if something runs on the snapshot
// or mounts it; and SnapshotNotReplaceable (ErrNotImplemented) if the snapshotter, or its options, do not permit it.
func (r *Replacer) Replace(ctx context.Context, e imagepin.Entry, from digest.Digest) error {
	job, err := r.newJob(ctx, e, from)
	if err != nil {
		return err
	}
	err = lease.With(ctx, r.config.Leases, lease.Use, func(ctx context.Context) error {
		if job.damaged, err = job.directories(ctx, job.names()); err != nil {
			return err
		}
		if err := job.checkWritable(); err != nil {
			return err
		}
		// Unpacking is in vain if something runs on the snapshot. It is looked at again before the exchange.
		if err := job.checkUnused(ctx); err != nil {
			return err
		}
		if err := job.holdLayers(ctx); err != nil {
			return err
		}
		defer job.removeScratch(ctx)
		if err := job.unpack(ctx); err != nil {
			return err
		}
		return job.exchange(ctx)
	})
	if err == nil {
		log.G(ctx).WithField("key", e.Key.String()).WithField("snapshots", len(job.layers)).Info("replaced damaged snapshots")
	}
	return err
}

// layer is a layer of an image.
type layer struct {
	desc            ocispec.Descriptor
	diffID, chainID digest.Digest
}

// job is one call of Replace.
type job struct {
	*Replacer
	entry       imagepin.Entry
	snapshotter snapshots.Snapshotter
	applier     diff.Applier
	applyOpts   []diff.ApplyOpt
	parent      string   // of the lowest damaged layer
	layers      []layer  // the damaged ones, lowest first
	damaged     tree     // the directories of their snapshots
	scratch     []string // snapshots with the new files, lowest first; the last one may be active
}

func (r *Replacer) newJob(ctx context.Context, e imagepin.Entry, from digest.Digest) (*job, error) {
	j := &job{Replacer: r, entry: e, snapshotter: r.config.Snapshotter(e.Target.Snapshotter)}
	if !supported(e.Target.Snapshotter) {
		return nil, j.notReplaceable("snapshotter " + e.Target.Snapshotter + " has no directories that can be exchanged")
	}
	var ok bool
	if j.applier, j.applyOpts, ok = r.config.Applier(e.Target.Snapshotter); !ok {
		return nil, j.notReplaceable("no runtime handler has snapshotter " + e.Target.Snapshotter)
	}
	all, err := blobs.LayersOf(ctx, r.config.Content, e)
	if err != nil {
		return nil, err
	}
	first := 0
	if from != "" {
		if first = slices.Index(all.ChainIDs, from); first < 0 {
			return nil, fmt.Errorf("%s is no layer of image %s: %w", from, e.ImageID, errdefs.ErrInvalidArgument)
		}
	}
	for i := first; i < len(all.Blobs); i++ {
		j.layers = append(j.layers, layer{all.Blobs[i], all.DiffIDs[i], all.ChainIDs[i]})
	}
	if first > 0 {
		j.parent = all.ChainIDs[first-1].String()
	}
	return j, nil
}

// holdLayers adds the layers to the lease in ctx. It fails with ErrNotFound if one is not in the content store.
func (j *job) holdLayers(ctx context.Context) error {
	id, _ := leases.FromContext(ctx)
	for _, l := range j.layers {
		// A resource can be added that does not exist.
		r := leases.Resource{ID: l.desc.Digest.String(), Type: upstream.ContentType}
		err := j.config.Leases.AddResource(ctx, leases.Lease{ID: id}, r)
		if err == nil {
			_, err = j.config.Content.Info(ctx, l.desc.Digest)
		}
		if err != nil {
			return fmt.Errorf("layer %s: %w", l.desc.Digest, err)
		}
	}
	return nil
}

// names returns the names of the damaged snapshots, lowest first.
func (j *job) names() []string {
	names := make([]string, len(j.layers))
	for i, l := range j.layers {
		names[i] = l.chainID.String()
	}
	return names
}

// unpack unpacks the damaged layers into new snapshots, and makes these durable.
func (j *job) unpack(ctx context.Context) error {
	id, _ := leases.FromContext(ctx)
	parent := j.parent
	for i, l := range j.layers {
		key := fmt.Sprintf("%s%s-%d-extract", scratchPrefix, id, i)
		mounts, err := j.snapshotter.Prepare(ctx, key, parent)
		if err != nil {
			return fmt.Errorf("create a snapshot for layer %s: %w", l.desc.Digest, err)
		}
		j.scratch = append(j.scratch, key)
		got, err := j.applier.Apply(ctx, l.desc, mounts, j.applyOpts...)
		if err != nil {
			return fmt.Errorf("unpack layer %s: %w", l.desc.Digest, err)
		}
		if got.Digest != l.diffID {
			return &imagepin.Error{
				Reason: imagepin.ContentCorrupt, Ref: j.entry.Ref, Target: j.entry.Target.String(), Class: errdefs.ErrFailedPrecondition,
				Message: fmt.Sprintf("layer %s was unpacked to %s, its configuration names %s", l.desc.Digest, got.Digest, l.diffID),
				Hint:    "Run imagepin check --deep --repair, which reads the layer, or push the image again.",
			}
		}
		name := fmt.Sprintf("%s%s-%d", scratchPrefix, id, i)
		if err := j.snapshotter.Commit(ctx, name, key); err != nil {
			return fmt.Errorf("commit a snapshot of layer %s: %w", l.desc.Digest, err)
		}
		j.scratch[i] = name
		parent = name
	}
	if err := j.config.Sync(ctx, j.entry.Target.Snapshotter); err != nil {
		return fmt.Errorf("make the new snapshots durable: %w", err)
	}
	failpoint.Reach("exchange.synced")
	return nil
}

// scratchPrefix is the prefix of the names of snapshots that exist during a call.
const scratchPrefix = "imagepin-replace-"

// exchange exchanges the directories of the damaged and the new snapshots, while no call uses the image.
func (j *job) exchange(ctx context.Context) error {
	fresh, err := j.directories(ctx, j.scratch)
	if err != nil {
		return err
	}
	refs, err := j.references(ctx)
	if err != nil {
		return err
	}
	unlock, err := j.config.Locks.ForRemoval(ctx, refs...)
	if err != nil {
		return err
	}
	defer unlock()
	if again, err := j.references(ctx); err != nil || !containsAll(refs, again) {
		return fmt.Errorf("keys of the snapshot were recorded meanwhile: %v: %w", err, errdefs.ErrUnavailable)
	}
	if err := j.checkUnused(ctx); err != nil {
		return err
	}
	for i := range j.layers {
		failpoint.Reach("exchange.directory")
		if err := exchangeDirectories(fresh.dirs[i], j.damaged.dirs[i]); err != nil {
			return j.notReplaceable(fmt.Sprintf("its directory cannot be exchanged: %v", err))
		}
	}
	if err := syncParents(append(slices.Clone(fresh.dirs), j.damaged.dirs...)); err != nil {
		return fmt.Errorf("make the exchange durable: %w", err)
	}
	failpoint.Reach("exchange.durable")
	return nil
}

// removeScratch removes the snapshots of the call. If that fails, the end of the lease does.
func (j *job) removeScratch(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	for _, name := range slices.Backward(j.scratch) {
		if err := j.snapshotter.Remove(ctx, name); err != nil && !errdefs.IsNotFound(err) {
			log.G(ctx).WithError(err).WithField("snapshot", name).Warn("cannot remove a snapshot of a repair, its lease does")
		}
	}
	if j.config.Released != nil {
		j.config.Released()
	}
}

func containsAll(all, some []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}
