package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// adoptBatch is how many images are adopted in one transaction.
const adoptBatch = 500

// adopter adopts the images of other tools.
type adopter struct {
	config     *Config
	repairs    *repairs
	unanswered *unanswered
	unmarked   *unmarked
	// awaitingUnpack are the snapshots that images have not been unpacked to yet, by record. Only Run uses it.
	awaitingUnpack map[string][]store.Snapshot
}

// adoptAll adopts the images that other tools put on the node before the start. It needs no leases, because no calls
// are served yet, and the records of the images hold them.
func (a *adopter) adoptAll(ctx context.Context, unknown []images.Image, have *health.Inventory) error {
	has := a.unanswered.inInventory(ctx, have)
	look := newLookAtStart(a.config.Content, have)
	late, err := a.unmarked.atStart()
	if err != nil {
		return err
	}
	var runtimes []runtimeplatform.Runtime
	for _, t := range a.config.Runtimes().Targets() {
		if rt, ok := a.config.Runtimes().ForTarget(t); ok {
			runtimes = append(runtimes, rt)
		}
	}
	for batch := range slices.Chunk(unknown, adoptBatch) {
		look.describeAll(ctx, batch, runtimes)
		var adoptions []store.Adoption
		for _, img := range batch {
			if entries := a.adopt(ctx, img, look, has, late); len(entries) > 0 {
				adoptions = append(adoptions, store.Adoption{Image: img, Entries: entries})
			}
		}
		if len(adoptions) == 0 {
			continue
		}
		failpoint.Reach("adopt.found")
		if err := a.record(ctx, adoptions); err != nil {
			return err
		}
		failpoint.Reach("adopt.recorded")
	}
	return ctx.Err()
}

// record records adoptions in one transaction. If that fails, it records each alone.
func (a *adopter) record(ctx context.Context, adoptions []store.Adoption) error {
	_, err := a.config.Store.Adopt(ctx, adoptions...)
	if err == nil || len(adoptions) == 1 {
		return err
	}
	log.G(ctx).WithError(err).Warn("cannot adopt several images at once, adopting each alone")
	return eachAlone(ctx, adoptions, func(one store.Adoption) (string, error) {
		_, err := a.config.Store.Adopt(ctx, one)
		return one.Image.Name, err
	})
}

// eachAlone calls adopt for each image, so that one which cannot be adopted does not block the others and the start. It fails
// if it can adopt none.
func eachAlone[I any](ctx context.Context, all []I, adopt func(I) (name string, _ error)) error {
	var failed []error
	for _, img := range all {
		name, err := adopt(img)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			log.G(ctx).WithError(err).WithField("image", name).Warn("ignoring image that cannot be adopted")
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 && len(failed) == len(all) {
		return failed[0]
	}
	return nil
}

// adoptEach is adoptAll while calls are served, when images may change after they were listed.
func (a *adopter) adoptEach(ctx context.Context, unknown []images.Image, have *health.Inventory) error {
	has := a.unanswered.inInventory(ctx, have)
	late, err := a.unmarked.atStart()
	if err != nil {
		return err
	}
	return eachAlone(ctx, unknown, func(img images.Image) (string, error) { return img.Name, a.adoptNow(ctx, img, has, late) })
}

// adoptTries is how often an image is looked at again because a part of it was removed while it was adopted.
const adoptTries = 3

// adoptNow adopts an image while others may remove it or its snapshot. It ignores an image that lacks a part, which may be
// a layer that is not looked at before: the image must not block others.
func (a *adopter) adoptNow(ctx context.Context, img images.Image, has hasSnapshot, late lateFunc) error {
	for range adoptTries {
		if done, err := a.adoptOnce(ctx, img, has, late); done || err != nil {
			return err
		}
		has = a.unanswered.onNode(ctx) // what was found before is gone
	}
	log.G(ctx).WithField("image", img.Name).Warn("ignoring image that cannot be adopted: a part of it is missing")
	return nil
}

// adoptOnce adds an image to a lease, checks it again, and then records it. done is false if a part of it is gone: if that
// is the snapshot, the image is to be unpacked again.
func (a *adopter) adoptOnce(ctx context.Context, img images.Image, has hasSnapshot, late lateFunc) (done bool, _ error) {
	entries := a.adopt(ctx, img, newLook(a.config.Content), has, late)
	if len(entries) == 0 {
		return true, nil
	}
	checked, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	limit := time.AfterFunc(a.unanswered.timeout, func() { stop(errSilent) })
	defer limit.Stop()
	err := a.config.Maker.WithLease(checked, entries, func(ctx context.Context) error {
		limit.Stop() // the snapshotters have responded
		done = true
		failpoint.Reach("adopt.found")
		a.config.Store.MarkUnsynced(img, entries...)
		if _, err := a.config.Store.Adopt(ctx, store.Adoption{Image: img, Entries: entries}); err != nil {
			return err
		}
		failpoint.Reach("adopt.recorded")
		return a.config.Retained.Sync(ctx, img.Target.Digest)
	})
	if err == nil || !errors.Is(context.Cause(checked), errSilent) {
		return done, err
	}
	for _, e := range entries {
		a.await(img, e)
		a.unanswered.add(ctx, store.SnapshotOf(e), true)
	}
	return true, nil
}

// adopt returns the entries of the targets that an image is unpacked for. If it is not unpacked for the default target
// but can be, adopt queues that, because stock containerd starts it there. It does not return a target whose snapshot is known to be
// damaged, or has to be compared first. Images that cannot be read or recorded are logged and ignored, so that they do not block the
// adoption of others and the start of the CRI.
func (a *adopter) adopt(ctx context.Context, img images.Image, look *look, has hasSnapshot, late lateFunc) []imagepin.Entry {
	ref, err := adoptable(img)
	if err != nil {
		return nil
	}
	delete(a.awaitingUnpack, img.Name)
	var entries []imagepin.Entry
	entry := log.G(ctx).WithField("image", img.Name)
	found, refused := a.candidates(ctx, img, ref, look)
	for _, err := range refused {
		entry.WithError(imagepin.BoundError(err, imagepin.MaxLogText)).Warn("ignoring image that cannot be adopted")
	}
	for _, e := range found {
		unpacked, err := has(e.Target.Snapshotter, e.ChainID)
		if err != nil && !errors.Is(err, errSilent) {
			entry.WithError(err).Warn("cannot check whether image is unpacked")
		}
		if unpacked {
			if !a.repairDamaged(ctx, img, e) && !a.compareLate(ctx, img, e, late) {
				entries = append(entries, e)
			}
			continue
		}
		a.await(img, e)
		if err == nil && e.Target == a.config.Runtimes().Default().Target {
			a.repairs.add(ctx, health.Loss{Entry: e, Reason: "another tool did not unpack it", Unpackable: true, Record: img.Name})
		}
	}
	return entries
}

// repairDamaged queues the repair of an image whose snapshot is known to be damaged: it is adopted when that has succeeded.
func (a *adopter) repairDamaged(ctx context.Context, img images.Image, e imagepin.Entry) (damaged bool) {
	why, err := a.config.Checker.KnownDamage(ctx, e)
	if err != nil {
		log.G(ctx).WithError(err).WithField("image", img.Name).Warn("cannot check whether the snapshot of an image is damaged")
	}
	if why == "" {
		return false
	}
	a.repairs.add(ctx, health.Loss{Entry: e, Reason: why, DamagedFiles: true, Record: img.Name})
	return true
}

// compareLate queues the comparison of an image if that is late, unless its key is ready: it is adopted when that has succeeded.
func (a *adopter) compareLate(ctx context.Context, img images.Image, e imagepin.Entry, late lateFunc) (queued bool) {
	if e.ChainID == "" {
		return false
	}
	if now, ok := a.config.Store.Get(e.Key); ok && now.Manifest == e.Manifest {
		return false
	}
	err := a.unanswered.ask(ctx, store.SnapshotOf(e), func(ctx context.Context) (err error) {
		queued, err = late(ctx, e)
		return err
	})
	switch {
	case errdefs.IsNotFound(err):
		return false // the lease of the adoption finds that too
	case errors.Is(err, errSilent):
		a.await(img, e)
		return true // it is asked again
	case err != nil:
		log.G(ctx).WithError(err).WithField("image", img.Name).Warn("cannot find whether an image is older than the boot, comparing its files")
		queued = true
	}
	if queued {
		a.repairs.add(ctx, health.Loss{Entry: e, Reason: unmarkedReason, Unverified: true, Record: img.Name})
	}
	return queued
}

// await notes that an image can be adopted for the target of an entry when its snapshot is found.
func (a *adopter) await(img images.Image, e imagepin.Entry) {
	a.awaitingUnpack[img.Name] = append(a.awaitingUnpack[img.Name], store.SnapshotOf(e))
}

// candidates returns the keys that an image can have with the content on the node. refused are the errors of keys that
// it cannot have although its platform is on the node.
func (a *adopter) candidates(ctx context.Context, img images.Image, ref reference.Named, look *look) (all []imagepin.Entry, refused []error) {
	for _, t := range a.config.Runtimes().Targets() {
		rt, ok := a.config.Runtimes().ForTarget(t)
		if !ok {
			continue
		}
		e, err := look.describe(ctx, img.Target, rt)
		if errdefs.IsNotFound(err) {
			continue // this platform is not on the node
		}
		if err != nil {
			return nil, []error{fmt.Errorf("it cannot be read: %w", err)}
		}
		e.Key = imagepin.Key{Ref: ref.String(), Target: t}
		e.ReadyAt = img.UpdatedAt
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

// snapshotCommitted adopts the images of other tools for which a snapshot may be the last one. ctr unpacks an image
// after it creates its record.
func (a *adopter) snapshotCommitted(ctx context.Context, p store.Snapshot) error {
	var failed error
	for _, name := range slices.Sorted(maps.Keys(a.awaitingUnpack)) {
		if !slices.Contains(a.awaitingUnpack[name], p) {
			continue
		}
		img, err := a.config.Records.Get(ctx, name)
		switch {
		case errdefs.IsNotFound(err):
			delete(a.awaitingUnpack, name)
		case err != nil:
			failed = errors.Join(failed, err)
		default:
			failed = errors.Join(failed, a.adoptNow(ctx, img, a.unanswered.onNode(ctx), a.unmarked.late))
		}
	}
	return failed
}

// unadopted returns why an image of another tool has no key. It returns "" if the image is about to get one.
func (a *adopter) unadopted(ctx context.Context, img images.Image, has hasSnapshot) (why string) {
	ref, err := adoptable(img)
	if err != nil {
		return err.Error()
	}
	found, refused := a.candidates(ctx, img, ref, newLook(a.config.Content))
	if len(refused) > 0 {
		return refused[0].Error()
	}
	if len(found) == 0 {
		return "the node has no content for the platforms of its runtime handlers"
	}
	var without []string
	for _, e := range found {
		unpacked, err := has(e.Target.Snapshotter, e.ChainID)
		if err != nil {
			return err.Error()
		}
		if unpacked {
			return ""
		}
		without = append(without, e.Target.Snapshotter)
	}
	slices.Sort(without)
	return "it is not unpacked in " + strings.Join(slices.Compact(without), ", ")
}

// adoptable returns the reference that a record's name is, if a pod can use it. It fails for an image ID, which is
// adopted with its references.
func adoptable(img images.Image) (reference.Named, error) {
	if _, err := digest.Parse(img.Name); err == nil {
		return nil, errors.New("its name is an image ID")
	}
	if len(img.Name) > imagepin.MaxReference {
		return nil, fmt.Errorf("its name has %d bytes, a reference has at most %d", len(img.Name), imagepin.MaxReference)
	}
	ref, err := reference.ParseDockerRef(img.Name)
	if err != nil {
		return nil, fmt.Errorf("its name is not a reference: %w", err)
	}
	if ref.String() != img.Name {
		return nil, fmt.Errorf("its name is not a normalized reference; use %s", ref)
	}
	// A record can target any digest, but a reference with a digest must target that digest.
	if d, ok := ref.(reference.Digested); ok && d.Digest() != img.Target.Digest {
		return nil, fmt.Errorf("it targets %s, not the digest in its name", img.Target.Digest)
	}
	return ref, nil
}
