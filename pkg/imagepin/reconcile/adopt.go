package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// adoptBatch is how many images are adopted in one transaction.
const adoptBatch = 50

// hasSnapshot reports whether an image is unpacked in a snapshotter.
type hasSnapshot func(snapshotter string, chainID digest.Digest) (bool, error)

// adoptAll adopts the images that other tools put on the node before the start. It needs no leases, because no calls
// are served yet, and the records of the images hold them.
func (r *Reconciler) adoptAll(ctx context.Context, unknown []images.Image, have *health.Inventory) error {
	has := r.inInventory(ctx, have)
	for batch := range slices.Chunk(unknown, adoptBatch) {
		var adoptions []store.Adoption
		for _, img := range batch {
			if entries := r.adopt(ctx, img, has); len(entries) > 0 {
				adoptions = append(adoptions, store.Adoption{Image: img, Entries: entries})
			}
		}
		if len(adoptions) == 0 {
			continue
		}
		failpoint.Reach("adopt.found")
		if _, err := r.config.Store.Adopt(ctx, adoptions...); err != nil {
			return err
		}
		failpoint.Reach("adopt.recorded")
	}
	return ctx.Err()
}

// adoptEach is adoptAll while calls are served, when images may change after they were listed.
func (r *Reconciler) adoptEach(ctx context.Context, unknown []images.Image, have *health.Inventory) error {
	has := r.inInventory(ctx, have)
	for _, img := range unknown {
		if err := r.adoptNow(ctx, img, has); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// inInventory looks for snapshots in an inventory. A snapshotter that does not respond is asked again later.
func (r *Reconciler) inInventory(ctx context.Context, have *health.Inventory) hasSnapshot {
	return func(snapshotter string, chainID digest.Digest) (bool, error) {
		if chainID == "" || have.Responds(snapshotter) && !r.unanswered.isSilent(snapshotter) {
			return have.HasSnapshot(snapshotter, chainID), nil
		}
		r.unanswered.add(ctx, snapshotOf(snapshotter, chainID), true)
		return false, errSilent
	}
}

// onNode looks for snapshots in the snapshotters.
func (r *Reconciler) onNode(ctx context.Context) hasSnapshot {
	return func(snapshotter string, chainID digest.Digest) (here bool, _ error) {
		err := r.unanswered.ask(ctx, snapshotOf(snapshotter, chainID), func(ctx context.Context) (err error) {
			here, err = r.config.Store.HasSnapshot(ctx, snapshotter, chainID)
			return err
		})
		return here, err
	}
}

// adoptNow adopts an image while others may remove it. It adds the image to a lease, checks it again, and then records
// it.
func (r *Reconciler) adoptNow(ctx context.Context, img images.Image, has hasSnapshot) error {
	entries := r.adopt(ctx, img, has)
	if len(entries) == 0 {
		return nil
	}
	checked, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	limit := time.AfterFunc(r.unanswered.timeout, func() { stop(errSilent) })
	defer limit.Stop()
	err := r.config.Maker.WithLease(checked, entries, func(ctx context.Context) error {
		limit.Stop() // the snapshotters have responded
		failpoint.Reach("adopt.found")
		r.config.Store.MarkUnsynced(img, entries...)
		if _, err := r.config.Store.Adopt(ctx, store.Adoption{Image: img, Entries: entries}); err != nil {
			return err
		}
		failpoint.Reach("adopt.recorded")
		return r.config.Retained.Sync(ctx, img.Target.Digest)
	})
	if err == nil || !errors.Is(context.Cause(checked), errSilent) {
		return err
	}
	for _, e := range entries {
		r.await(img, e)
		r.unanswered.add(ctx, snapshotOf(e.Target.Snapshotter, e.ChainID), true)
	}
	return nil
}

// noteUntagged notes an image that has a record of its ID but no key. containerd's CRI lists it without a tag if it can
// read it. If the image has no record of its ID, noteUntagged creates that record.
func (r *Reconciler) noteUntagged(ctx context.Context, img images.Image) {
	_, err := digest.Parse(img.Name)
	isID := err == nil
	if !isID && !store.Managed(img) || r.config.Store.Accounted(img) {
		return
	}
	e, _, err := pull.DescribeLocal(ctx, r.config.Content, img.Target, r.config.Runtimes().Default())
	switch {
	case err != nil:
	case e.ImageID.String() == img.Name:
		r.config.Store.NoteUntagged(store.Untagged{Entry: e})
	case !isID:
		r.unkeyed[img.Name] = e.ImageID
		if err := r.config.Store.CreateIDRecord(ctx, img, e.ImageID); err != nil && ctx.Err() == nil {
			log.G(ctx).WithError(err).WithField("image", img.Name).Warn("cannot create the record of an image ID")
		}
	}
}

// noteUnkeyed is noteUntagged for all images.
func (r *Reconciler) noteUnkeyed(ctx context.Context) error {
	unaccounted, err := r.config.Store.Unaccounted(ctx)
	if err != nil {
		return err
	}
	for _, img := range unaccounted {
		r.noteUntagged(ctx, img)
	}
	return ctx.Err()
}

// syncUnkeyed creates the record of an image ID again if it was removed and a record without a key still needs it. The
// image may have lost its last key while another tool created that record.
func (r *Reconciler) syncUnkeyed(ctx context.Context, id digest.Digest) error {
	var failed error
	for _, name := range slices.Sorted(maps.Keys(r.unkeyed)) {
		if r.unkeyed[name] != id {
			continue
		}
		img, err := r.config.Records.Get(ctx, name)
		switch {
		case errdefs.IsNotFound(err):
			delete(r.unkeyed, name)
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("read image record %s: %w", name, err))
		default:
			r.noteUntagged(ctx, img)
		}
	}
	return failed
}

// adopt returns the entries of the targets that an image is unpacked for. If it is not unpacked for the default target
// but can be, adopt queues that, because stock containerd starts it there. Images that cannot be read or recorded are
// logged and ignored, so that they do not block the adoption of others and the start of the CRI.
func (r *Reconciler) adopt(ctx context.Context, img images.Image, has hasSnapshot) []imagepin.Entry {
	ref, err := adoptable(img)
	if err != nil {
		return nil
	}
	delete(r.awaitingUnpack, img.Name)
	var entries []imagepin.Entry
	entry := log.G(ctx).WithField("image", img.Name)
	found, refused := r.candidates(ctx, img, ref)
	for _, err := range refused {
		entry.WithError(imagepin.BoundError(err, imagepin.MaxLogText)).Warn("ignoring image that cannot be adopted")
	}
	for _, e := range found {
		unpacked, err := has(e.Target.Snapshotter, e.ChainID)
		if err != nil && !errors.Is(err, errSilent) {
			entry.WithError(err).Warn("cannot check whether image is unpacked")
		}
		if unpacked {
			entries = append(entries, e)
			continue
		}
		r.await(img, e)
		if err == nil && e.Target == r.config.Runtimes().Default().Target {
			r.repairs.add(ctx, health.Loss{Entry: e, Reason: "another tool did not unpack it", Unpackable: true, Record: img.Name})
		}
	}
	return entries
}

// await notes that an image can be adopted for the target of an entry when its snapshot is found.
func (r *Reconciler) await(img images.Image, e imagepin.Entry) {
	r.awaitingUnpack[img.Name] = append(r.awaitingUnpack[img.Name], snapshotOf(e.Target.Snapshotter, e.ChainID))
}

// candidates returns the keys that an image can have with the content on the node. refused are the errors of keys that
// it cannot have although its platform is on the node.
func (r *Reconciler) candidates(ctx context.Context, img images.Image, ref reference.Named) (all []imagepin.Entry, refused []error) {
	for _, t := range r.config.Runtimes().Targets() {
		rt, ok := r.config.Runtimes().ForTarget(t)
		if !ok {
			continue
		}
		e, manifest, err := pull.DescribeLocal(ctx, r.config.Content, img.Target, rt)
		if errdefs.IsNotFound(err) {
			continue // this platform is not on the node
		}
		if err != nil {
			return nil, []error{fmt.Errorf("it cannot be read: %w", err)}
		}
		e.Key = imagepin.Key{Ref: ref.String(), Target: t}
		e.Root, e.Source, e.ReadyAt = img.Target, source(ctx, r.config.Content, manifest), img.UpdatedAt
		e.RecordTarget = pull.RecordTarget(ctx, r.config.Content, img.Target, manifest, rt)
		if e.Record, err = store.RecordName(ref, e.RecordTarget.Digest); err == nil {
			_, _, err = imagepin.EncodeKeyLabel(e)
		}
		if err != nil {
			refused = append(refused, fmt.Errorf("it cannot be recorded: %w", err))
			continue
		}
		all = append(all, e)
	}
	return all, refused
}

// source returns whether another tool pulled an image or imported it from a file. containerd labels each blob with the
// registry that it came from.
func source(ctx context.Context, provider content.InfoProvider, manifest ocispec.Descriptor) imagepin.Source {
	info, err := provider.Info(ctx, manifest.Digest)
	if err != nil {
		return imagepin.SourceAdopted // the stricter of the two
	}
	for label := range info.Labels {
		if strings.HasPrefix(label, labels.LabelDistributionSource) {
			return imagepin.SourceAdopted
		}
	}
	return imagepin.SourceImported
}
