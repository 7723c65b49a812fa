package decide

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Pins reads and writes the pins of the node. [pin.Store] implements it.
type Pins interface {
	PinReader
	PinWriter
}

// PinReader finds pins.
type PinReader interface {
	Get(id pin.ID) (pin.Pin, bool)
	// Scopes returns the pins of a reference.
	Scopes(ref string) []pin.Pin
	// Pinned reports whether a reference has a pin in any scope.
	Pinned(ref string) bool
	// OfLock returns the pin that the node's lock has for a reference.
	OfLock(ref string) (pin.Pin, bool)
	// CheckReadable fails with [imagepin.PinOfNewerRelease] if a pin cannot be read.
	CheckReadable(id pin.ID) error
	List() []pin.Pin
}

// PinWriter changes pins.
type PinWriter interface {
	// MakeForNamespace pins a reference for a pod in a namespace, unless it is pinned.
	MakeForNamespace(ctx context.Context, namespace string, id pin.ID, root ocispec.Descriptor, by pin.By, retain bool) (pin.Pin, error)
	Move(ctx context.Context, id pin.ID, root ocispec.Descriptor, by pin.By, retain bool) (pin.Pin, error)
	// MoveUnchanged is Move for a pin that has not been removed or moved since it was read.
	MoveUnchanged(ctx context.Context, read pin.Pin, root ocispec.Descriptor, by pin.By, retain bool) (pin.Pin, error)
	// Refresh moves a pin if it has not moved since it was read. It fails with [pin.ErrNoRoom] if the pin retains
	// content and no room is reserved.
	Refresh(ctx context.Context, read pin.Pin, root ocispec.Descriptor, reserved bool) (pin.Pin, error)
	// Touch records the use of a pin.
	Touch(ctx context.Context, id pin.ID) error
	// RecordDrift records the digest that the registry returned for a pinned tag.
	RecordDrift(ctx context.Context, id pin.ID, now digest.Digest) error
	// EvictRetaining removes pins that retain content and that nothing uses, of namespaces for which may returns true: the fewest
	// digests that are enough, or none.
	EvictRetaining(ctx context.Context, may func(namespace string) bool, enough func(freed []digest.Digest) bool) (evicted bool, _ error)
	// Prove records the use of proofs on the pins that retain a digest.
	Prove(ctx context.Context, ref reference.Named, root digest.Digest, used ...imagepin.Proof) error
}

func (q Request) pinID() pin.ID { return pin.ID{Scope: q.Policy.Scope, Ref: q.Ref.String()} }

func (q Request) firstUse() *pin.FirstUse {
	use := &pin.FirstUse{ID: q.pinID(), Namespace: q.Policy.Namespace, Retain: q.Policy.Retain}
	if q.Policy.Scope != policy.NodeScope {
		use.Pod = q.Pod
	}
	return use
}

// Key returns the same text for requests with the same outcome, without the credential. A request after a pin has moved has another
// key than one before.
func (q Request) Key() string {
	var pinned digest.Digest
	if q.Pin != nil {
		pinned = q.Pin.Root.Digest
	}
	return strings.Join([]string{
		q.Ref.String(), q.Target.String(), string(q.Policy.Behavior), string(q.Policy.Scope), pinned.String(),
		strconv.FormatBool(q.New), q.Running.String(),
	}, "\x00")
}

// MovedError means that a reference was pinned to another digest after the decision.
type MovedError struct {
	// Verdict is the current verdict.
	Verdict Verdict
}

// Error implements error.
func (e *MovedError) Error() string {
	return fmt.Sprintf("%s was pinned to %s during the pull", e.Verdict.Ref, e.Verdict.Root.Digest)
}

// Claim makes the pin of a verdict if this is the first use of its reference. It reserves space for the content that the pins of the
// verdict retain, until release is called. Call it after the image verifiers have allowed the image and the manifest has been read,
// so that no digest is pinned that cannot run, and before layers are fetched.
//
// image is what is known of the image: Key, Root, Manifest and Size. arrived returns how much of it is on the node. Content that pins
// release when they move counts as free space. Pins that nothing uses give way.
//
// It fails with a *[MovedError] if another use was first, and with [imagepin.RetainLimitReached] and [imagepin.PinLimitReached]
// (both ErrResourceExhausted).
func (d *Decider) Claim(ctx context.Context, v Verdict, image imagepin.Entry, arrived func() int64) (_ Verdict, release func(), err error) {
	if release, err = d.reserveFor(ctx, v, image, arrived); err != nil {
		return v, nil, err
	}
	if v, err = d.pinFirstUse(ctx, v); err != nil {
		release()
		return v, nil, err
	}
	return v, release, nil
}

// reserveFor reserves space for the content that the pins of a verdict retain.
func (d *Decider) reserveFor(ctx context.Context, v Verdict, image imagepin.Entry, arrived func() int64) (release func(), _ error) {
	switch {
	case !v.Retains():
		return func() {}, nil
	case len(v.Moves) == 0:
		return d.reserve(ctx, v.Namespace, arrived, nil, image)
	default:
		// A refresh makes the image ready for one target after the other.
		freed := d.freedBy(v.Moves, v.Root.Digest)
		return d.reserve(ctx, "", arrived, freed, append(d.inRepository(v.Ref, v.Root.Digest), image)...)
	}
}

// reserve is Reserve of Retained. If there is no space, it removes pins that nothing uses: those of the namespace, and those of
// namespaces that have more than their share.
func (d *Decider) reserve(ctx context.Context, namespace string, arrived func() int64, freed func(root digest.Digest) bool, entries ...imagepin.Entry) (release func(), _ error) {
	var more int64
	for _, e := range entries {
		more = imagepin.AddSize(more, e.Size)
	}
	for {
		release, err := d.retained.Reserve(namespace, arrived, freed, entries...)
		var full *imagepin.Error
		if !errors.As(err, &full) || full.Reason != imagepin.RetainLimitReached {
			return release, err
		}
		over := d.retained.OverShare(namespace, more)
		may := func(other string) bool { return other == namespace || over(other) }
		evicted, eerr := d.pins.EvictRetaining(ctx, may, func(also []digest.Digest) bool {
			without := func(root digest.Digest) bool { return freed != nil && freed(root) || slices.Contains(also, root) }
			release, err := d.retained.Reserve(namespace, arrived, without, entries...)
			if err == nil {
				release()
			}
			return err == nil
		})
		if eerr != nil {
			return nil, errors.Join(err, eerr)
		}
		if !evicted {
			return nil, err
		}
	}
}

// pinFirstUse makes the pin of a verdict if this is the first use of its reference.
func (d *Decider) pinFirstUse(ctx context.Context, v Verdict) (Verdict, error) {
	use := v.FirstUse
	if use == nil {
		return v, nil
	}
	held, err := d.makePin(ctx, v, use)
	if err != nil {
		return v, err
	}
	if held.Root.Digest != v.Root.Digest {
		return v, &MovedError{Verdict: d.apply(v, held)}
	}
	v.Pin, v.FirstUse = &held, nil
	if v.Registry != nil {
		d.lookedUp(held.Ref, v.Registry.Digest)
	}
	return v, nil
}

// makePin makes the pin of a verdict, unless the reference is pinned. It fails with a *[MovedError] if another node was first.
func (d *Decider) makePin(ctx context.Context, v Verdict, use *pin.FirstUse) (pin.Pin, error) {
	for _, a := range d.authorities() {
		held, ok, err := a.Claim(ctx, *use, v.Root)
		if err != nil {
			return pin.Pin{}, err
		}
		if !ok {
			continue
		}
		if held.Described() {
			return held, nil
		}
		moved, err := d.decideMoved(ctx, v, use, held)
		if err == nil {
			err = &MovedError{Verdict: moved}
		}
		return pin.Pin{}, err
	}
	// A reload has removed the cluster since the decision. The next try decides without it.
	return pin.Pin{}, fmt.Errorf("the node does not use the Kubernetes API any more: %w", errdefs.ErrUnavailable)
}

// Current checks that a verdict is still right: it fails with a *[MovedError] if its pin has moved, or a lock has been applied, since
// it was decided. movesTag reports whether the verdict decides what its tag resolves to on the node.
func (d *Decider) Current(v Verdict) (movesTag bool, _ error) {
	if _, ok := v.Ref.(reference.Digested); ok {
		return d.movesTag(v), nil
	}
	var scope policy.Scope
	if v.Pin != nil {
		scope = v.Pin.Scope
	}
	if now, ok := d.now(v.Ref.String(), scope); ok && now.Root.Digest != v.Root.Digest {
		return false, &MovedError{Verdict: d.apply(v, now)}
	}
	return d.movesTag(v), nil
}

// movesTag reports whether a verdict decides what its tag resolves to on the node. The node's lock decides, then a pin of
// scope node. Otherwise a pull decides, unless a pin, or the lack of an answer, has sent it to another digest than the registry
// returned or the tag has: one workload must not decide for the others.
func (d *Decider) movesTag(v Verdict) bool {
	if held, ok := d.now(v.Ref.String(), policy.NodeScope); ok {
		return held.Root.Digest == v.Root.Digest
	}
	if v.Pin == nil && v.Fallback() {
		tagged := d.images.ByRef(v.Ref.String())
		return len(tagged) == 0 || slices.ContainsFunc(tagged, func(e imagepin.Entry) bool { return e.Root.Digest == v.Root.Digest })
	}
	if v.Pin == nil || v.Pin.Scope == policy.NodeScope {
		return true
	}
	return v.Registry != nil && v.Registry.Digest == v.Root.Digest
}
