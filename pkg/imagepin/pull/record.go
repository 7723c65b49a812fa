package pull

import (
	"context"
	"slices"

	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// record writes an image that is in place under the job's reference and under
// its digest, so that it is found by either. A reference that is pinned, but not
// for this pull, stays with what it means.
func (p *Puller) record(ctx context.Context, j job, e imagepin.Entry) (imagepin.Entry, store.Change, error) {
	byDigest, err := reference.WithDigest(reference.TrimNamed(j.ref), j.root.Digest)
	if err != nil {
		return imagepin.Entry{}, store.Change{}, err
	}
	if j.pin == nil || !j.pin.Retain {
		p.RetainIfPinned(ctx, e)
	} else if err := p.retain(ctx, e); err != nil {
		return imagepin.Entry{}, store.Change{}, err
	}
	e.Ref = byDigest.String()
	entries := []imagepin.Entry{e}
	if ref := j.ref.String(); ref != e.Ref && !p.holdsStill(j) {
		e.Ref = ref
		entries = append(entries, e)
	}
	change, err := p.Store.Put(ctx, j.proof, entries...)
	if err != nil {
		return imagepin.Entry{}, store.Change{}, err
	}
	if j.proof != "" {
		if err := p.Pins.Prove(ctx, j.ref, j.root.Digest, j.proof); err != nil {
			return imagepin.Entry{}, store.Change{}, err
		}
	}
	return e, change, nil
}

// holdsStill tells whether a job must not move what its reference means for the
// target: it is pinned, and not by this job's pin.
func (p *Puller) holdsStill(j job) bool {
	if j.pin != nil || !p.Pins.Pinned(j.ref.String()) {
		return false
	}
	_, meant := p.Store.Get(imagepin.Key{Ref: j.ref.String(), Target: j.runtime.Target})
	return meant
}

// retain holds what a pin retains, while a lease of the caller still does.
func (p *Puller) retain(ctx context.Context, e imagepin.Entry) error {
	if !p.Pins.Retains(e.Root.Digest) || p.Retainer.Holds(e) {
		return nil
	}
	return p.Retainer.Retain(ctx, e)
}

// RetainIfPinned holds what somebody's pin retains, before it is recorded and
// while a lease of the caller still does. That it cannot is not the caller's
// failure, and is logged.
func (p *Puller) RetainIfPinned(ctx context.Context, e imagepin.Entry) {
	if err := p.retain(ctx, e); err != nil {
		log.G(ctx).WithError(err).WithField("ref", e.Ref).Warn("an image is not retained")
	}
}

// of gives what the node has of one digest of a reference. What another tool
// has put here is found by the tag alone.
func (p *Puller) of(ref reference.Named, root digest.Digest) []imagepin.Entry {
	entries := p.Store.ByRef(ref.String())
	if byDigest, err := reference.WithDigest(reference.TrimNamed(ref), root); err == nil && byDigest.String() != ref.String() {
		entries = append(p.Store.ByRef(byDigest.String()), entries...)
	}
	return slices.DeleteFunc(entries, func(e imagepin.Entry) bool { return e.Root.Digest != root })
}

// retainHere holds what of one digest of a reference is on the node, and has the
// pins that retain it remember who may have it.
func (p *Puller) retainHere(ctx context.Context, ref reference.Named, root digest.Digest) error {
	byDigest, err := reference.WithDigest(reference.TrimNamed(ref), root)
	if err != nil {
		return err
	}
	unlock, err := p.images.RLock(ctx, ref.String(), byDigest.String())
	if err != nil {
		return err
	}
	defer unlock()
	var proofs []string
	for _, e := range p.of(ref, root) {
		proofs = append(proofs, p.Store.Proofs(e.Record)...)
		if p.Retainer.Holds(e) {
			continue
		}
		if err := p.Retainer.Retain(ctx, e); err != nil {
			return err
		}
	}
	return p.Pins.Prove(ctx, ref, root, proofs...)
}

// PinUse is for a container that is made without a pull: it gives the digest
// that a reference means for the container's pod, where root is what the caller
// was given. The first use decides. Without a scope it is root.
func (p *Puller) PinUse(ctx context.Context, ref reference.Named, pod policy.Pod, root ocispec.Descriptor) (ocispec.Descriptor, *pin.Pin, error) {
	d := p.Decide(ctx, ref, pod)
	if d.Scope == "" {
		return root, nil, nil
	}
	id := pin.ID{Scope: d.Scope, Ref: ref.String()}
	if _, ok := p.Pins.Get(id); !ok && d.Retain {
		// First, so that there is no pin where there is no room.
		release, err := p.Retainer.Reserve(nil, p.of(ref, root.Digest)...)
		if err != nil {
			return root, nil, err
		}
		defer release()
	}
	held, err := p.Pins.Make(ctx, id, root, pin.ByUse, d.Retain)
	if err != nil {
		return root, nil, err
	}
	if held.Retain {
		if err := p.retainHere(ctx, ref, held.Root.Digest); err != nil {
			return root, nil, err
		}
	}
	return held.Root, &held, p.Pins.Touch(ctx, held.ID)
}
