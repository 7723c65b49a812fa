package pull

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// errRemoved says that something else removed what a key was to be made of.
var errRemoved = fmt.Errorf("a part of the image was removed while it was made ready: %w", errdefs.ErrUnavailable)

// removed is an error of content that was on the node and is not any more: where it
// was removed meanwhile, another try finds it missing and fetches it.
type removed struct{ error }

// Is implements the interface that errors.Is looks for.
func (removed) Is(target error) bool { return target == errRemoved }

// Unwrap gives the error.
func (r removed) Unwrap() error { return r.error }

// asRemoved makes an error of missing content errRemoved, unless a registry or the
// image itself lacks it.
func asRemoved(err error) error {
	var known *imagepin.Error
	if errdefs.IsNotFound(err) && !atRegistry(err) && !errors.As(err, &known) {
		return removed{err}
	}
	return err
}

// record writes an image that is in place under the job's reference and under
// its digest, so that it is found by either. The context carries a lease, which
// holds the image from then on. It fails with errRemoved where a part of it is
// not there any more.
func (p *Puller) record(ctx context.Context, j job, e imagepin.Entry) (recorded imagepin.Entry, change store.Change, _ error) {
	entries, err := p.entries(j, e)
	if err != nil {
		return imagepin.Entry{}, change, err
	}
	e = entries[len(entries)-1]
	err = traced(ctx, "record", func(ctx context.Context) error {
		err := p.Store.AddToLease(ctx, e)
		if errdefs.IsNotFound(err) {
			return errRemoved
		}
		if err != nil {
			return err
		}
		if err := p.retainFirst(ctx, j, e); err != nil {
			return err
		}
		if change, err = p.Store.Put(ctx, j.proof, entries...); err != nil {
			return err
		}
		failpoint.Reach("pull.recorded")
		// A pin that was made since retainFirst has not seen the key. Only this call can
		// retain it for the pin, so it does not stop when its caller gives up.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return p.retainRecorded(ctx, j, e)
	})
	return e, change, err
}

// recorded reports whether record has nothing to do for an image that is ready,
// and gives its entry.
func (p *Puller) recorded(j job, e imagepin.Entry) (imagepin.Entry, bool) {
	entries, err := p.entries(j, e)
	if err != nil || j.toPin != nil || !p.Store.Recorded(j.proof, entries...) {
		return imagepin.Entry{}, false
	}
	e = entries[len(entries)-1]
	return e, p.retentionHeld(j, e)
}

// entries are the keys of a job's image: that of its digest, and that of its
// reference where the job decides what that means on the node.
func (p *Puller) entries(j job, e imagepin.Entry) ([]imagepin.Entry, error) {
	byDigest, err := j.byDigest()
	if err != nil {
		return nil, err
	}
	e.Ref = byDigest.String()
	// What was found ready can be carried by the record of another tag.
	if e.Record, err = store.RecordName(j.ref, e.RecordTarget.Digest); err != nil {
		return nil, err
	}
	entries := []imagepin.Entry{e}
	if ref := j.ref.String(); ref != e.Ref && p.movesTag(j) {
		e.Ref = ref
		entries = append(entries, e)
	}
	return entries, nil
}

// movesTag reports whether a job decides what its tag means on the node: a pin of
// the node does, and else a pull that no pin has sent elsewhere than its registry
// does. Otherwise one workload would decide for the others.
func (p *Puller) movesTag(j job) bool {
	if held, ok := p.Pins.Get(pin.ID{Scope: policy.NodeScope, Ref: j.ref.String()}); ok {
		return held.Root.Digest == j.root.Digest
	}
	if j.pin == nil || j.pin.Scope == policy.NodeScope {
		return true
	}
	return j.registry != nil && j.registry.Digest == j.root.Digest
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

// PinFor gives the pin that decides what a reference means for a container's pod;
// nil where there is none yet. scoped is false where the policy makes none. It fails
// with [imagepin.PinOfNewerRelease].
func (p *Puller) PinFor(ctx context.Context, ref reference.Named, pod policy.Pod) (held *pin.Pin, scoped bool, _ error) {
	d := p.Decide(ctx, ref, pod)
	if d.Scope == "" {
		return nil, false, nil
	}
	id := pin.ID{Scope: d.Scope, Ref: ref.String()}
	if now, ok := p.Pins.Get(id); ok {
		return &now, true, nil
	}
	return nil, true, p.Pins.CheckReadable(id)
}

// PinUse is for a container that is made without a pull, of root, which is ready
// for it: it gives the digest that a reference means for the container's pod. The
// first use decides. Without a scope it is root.
func (p *Puller) PinUse(ctx context.Context, ref reference.Named, pod policy.Pod, root ocispec.Descriptor) (ocispec.Descriptor, error) {
	d := p.Decide(ctx, ref, pod)
	if d.Scope == "" {
		return root, nil
	}
	id := pin.ID{Scope: d.Scope, Ref: ref.String()}
	if _, ok := p.Pins.Get(id); !ok && d.Retain {
		// First, so that there is no pin where there is no room.
		release, err := p.Retainer.Reserve(nil, p.inRepository(ref, root.Digest)...)
		if err != nil {
			return root, err
		}
		defer release()
	}
	held, err := p.Pins.MakeFor(ctx, d.Namespace, id, root, pin.ByUse, d.Retain)
	if err != nil {
		return root, err
	}
	if err := p.retainPin(ctx, ref, held); noRoom(err) {
		log.G(ctx).WithError(err).WithField("ref", ref.String()).Warn("what a pin is to retain is not held")
	} else if err != nil {
		return root, err
	}
	return held.Root, p.Pins.Touch(ctx, held.ID)
}
