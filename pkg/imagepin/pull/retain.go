package pull

import (
	"context"
	"errors"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// A pin may be made, and keys of the digest that it retains recorded, at the same
// time. So whoever records a key looks for pins after that, and whoever makes a pin
// looks for keys after that: one of them sees the other.

// retainFirst holds an image before it is recorded. It fails where the job's own
// pin cannot retain it; that others cannot is logged.
func (p *Puller) retainFirst(ctx context.Context, j job, e imagepin.Entry) error {
	if j.Pin == nil || !j.Pin.Retain {
		p.RetainIfPinned(ctx, e)
		return nil
	}
	return p.retain(ctx, e)
}

// retainRecorded holds an image that has been recorded, where a pin was made
// meanwhile, and what else of its digest the job's pin retains.
func (p *Puller) retainRecorded(ctx context.Context, j job, e imagepin.Entry) error {
	if err := p.prove(ctx, j); err != nil {
		return err
	}
	if j.Pin == nil || !j.Pin.Retain {
		p.RetainIfPinned(ctx, e)
		return nil
	}
	err := p.retainHere(ctx, j.Ref, j.Root.Digest)
	if noRoom(err) {
		log.G(ctx).WithError(err).WithField("ref", e.Ref).Warn("an image of another target is not retained")
		return nil
	}
	return err
}

// prove notes on the pins that retain a job's digest that its credential was
// accepted.
func (p *Puller) prove(ctx context.Context, j job) error {
	if j.Proof == "" {
		return nil
	}
	return p.Pins.Prove(ctx, j.Ref, j.Root.Digest, j.Proof)
}

// retentionHeld reports whether there is nothing to retain for a job whose image
// is ready. What there is no room for is nothing, unless the job's own pin asks
// for it.
func (p *Puller) retentionHeld(j job, e imagepin.Entry) bool {
	if !p.Pins.Retains(e.Root.Digest) {
		return true
	}
	if j.Pin != nil && j.Pin.Retain && !p.Retainer.Holds(e) {
		return false
	}
	for _, o := range append(p.inRepository(j.Ref, j.Root.Digest), e) {
		if p.Retainer.Holds(o) {
			continue
		}
		if release, err := p.Retainer.Reserve(nil, o); err == nil {
			release()
			return false
		}
	}
	return true
}

// noRoom reports whether err is that max_retained_bytes is reached.
func noRoom(err error) bool {
	var full *imagepin.Error
	return errors.As(err, &full) && full.Name == imagepin.RetainLimitReached
}

// retain holds what a pin retains, while a lease of the caller still does.
func (p *Puller) retain(ctx context.Context, e imagepin.Entry) error {
	if !p.Pins.Retains(e.Root.Digest) || p.Retainer.Holds(e) {
		return nil
	}
	return p.Retainer.Retain(ctx, e)
}

// RetainIfPinned holds what somebody's pin retains, while a lease of the caller
// still does. It is called after the image was recorded. That it cannot is not the
// caller's failure, and is logged.
func (p *Puller) RetainIfPinned(ctx context.Context, e imagepin.Entry) {
	if err := p.retain(ctx, e); err != nil {
		log.G(ctx).WithError(err).WithField("ref", e.Ref).Warn("an image is not retained")
	}
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
	var (
		proofs []string
		loose  []imagepin.Entry
	)
	for _, e := range p.inRepository(ref, root) {
		proofs = append(proofs, p.Store.Proofs(e.Record)...)
		if !p.Retainer.Holds(e) {
			loose = append(loose, e)
		}
	}
	for _, e := range loose {
		if err := p.retainOne(ctx, e); err != nil {
			return err
		}
	}
	return p.Pins.Prove(ctx, ref, root, proofs...)
}

// retainPin holds what a pin retains of what is on the node, once the pin is made or
// moved. The pin stays whoever has gone meanwhile, and so it is done for a caller that
// has gone, too.
func (p *Puller) retainPin(ctx context.Context, ref reference.Named, held pin.Pin) error {
	if !held.Retain {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	return p.retainHere(ctx, ref, held.Root.Digest)
}

// inRepository gives what the node has of one digest of ref's repository, under
// whatever reference: that of another tag, by which another tool has pulled it, too.
func (p *Puller) inRepository(ref reference.Named, root digest.Digest) []imagepin.Entry {
	return slices.DeleteFunc(p.Store.ByRoot(root), func(e imagepin.Entry) bool {
		of, err := reference.ParseNamed(e.Ref)
		return err != nil || of.Name() != ref.Name()
	})
}

// retainOne holds an image that is recorded. One that another tool has just
// removed is left out.
func (p *Puller) retainOne(ctx context.Context, e imagepin.Entry) error {
	return p.withLease(ctx, func(ctx context.Context) error {
		err := p.Store.AddToLease(ctx, e)
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return p.Retainer.Retain(ctx, e)
	})
}

// RetainPinned holds what pins retain and no lease holds yet: what is left to
// do where a kill came after a pin was made or moved, and before its content
// was held. What there is no room for is logged, and stays without.
func (p *Puller) RetainPinned(ctx context.Context) error {
	for _, held := range p.Pins.List() {
		if !held.Retain {
			continue
		}
		ref, err := imagepin.ParseReference(held.Ref)
		if err != nil {
			return err
		}
		err = p.retainHere(ctx, ref, held.Root.Digest)
		if noRoom(err) {
			log.G(ctx).WithError(err).WithField("ref", held.Ref).Warn("what a pin is to retain is not held")
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}
