package decide

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	// Follow makes or moves the node's copy of a pin that a node has claimed in the cluster. Unfollow removes it, and
	// reports whether this call did.
	Follow(ctx context.Context, id pin.ID, root ocispec.Descriptor, retain bool, claimer string) (pin.Followed, error)
	Unfollow(ctx context.Context, read pin.Pin) (removed bool, _ error)
	// MakeProvisional pins a reference until the cluster has a pin, unless it is pinned.
	MakeProvisional(ctx context.Context, id pin.ID, root ocispec.Descriptor, retain bool, pod pin.Claimant) (pin.Pin, error)
	// EvictRetaining removes pins that retain content and that nothing uses, of namespaces for which may returns true: the fewest
	// digests that are enough, or none.
	EvictRetaining(ctx context.Context, may func(namespace string) bool, enough func(freed []digest.Digest) bool) (evicted bool, _ error)
	// Prove records the use of proofs on the pins that retain a digest.
	Prove(ctx context.Context, ref reference.Named, root digest.Digest, used ...imagepin.Proof) error
}

// FirstUse is a pin that the first use of a reference makes.
type FirstUse struct {
	ID pin.ID
	// Namespace is the Kubernetes namespace of the pod that the pin is made for. It is empty if there is no pod.
	Namespace string
	Retain    bool
	// Pod is the pod that the pin is claimed for in the cluster. It has neither an owner nor is it provisional if the pin is
	// the node's own.
	Pod policy.Pod
	// Registry is what the registry returned for the tag before another node was found to have pinned it, or "".
	Registry digest.Digest
}

// inCluster reports whether the pin is one of the cluster.
func (u *FirstUse) inCluster() bool { return u.Pod.Owner != nil || u.Pod.Provisional }

func (q Request) pinID() pin.ID { return pin.ID{Scope: q.Policy.Scope, Ref: q.Ref.String()} }

func (q Request) firstUse() *FirstUse {
	use := &FirstUse{ID: q.pinID(), Namespace: q.Policy.Namespace, Retain: q.Policy.Retain}
	if q.Policy.Scope != policy.NodeScope {
		use.Pod = q.Pod
	}
	return use
}

// Pinned returns the digest that the reference of a request is pinned to, or "".
func (d *Decider) Pinned(q Request) digest.Digest {
	held, ok := d.pins.Get(q.pinID())
	if q.Policy.Scope == "" {
		return ""
	}
	if known, other := d.claimed(q, heldOrNil(held, ok)); other {
		return known.Digest
	}
	return held.Root.Digest
}

// pinOf returns the pin for a request, or nil.
func (d *Decider) pinOf(q Request) (*pin.Pin, error) {
	if q.Policy.Scope == "" {
		return nil, nil
	}
	if held, ok := d.pins.Get(q.pinID()); ok {
		return &held, nil
	}
	return nil, d.pins.CheckReadable(q.pinID())
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

// Reserve reserves space for the content that the pins of a verdict retain, until release is called. image is what is
// known of the image: Key, Root, Manifest and Size. arrived returns how much of it is on the node. Content that pins release when
// they move counts as free space. Pins that nothing uses give way. It fails with [imagepin.RetainLimitReached]
// (ErrResourceExhausted).
func (d *Decider) Reserve(ctx context.Context, v Verdict, image imagepin.Entry, arrived func() int64) (release func(), _ error) {
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

// PinFirstUse makes the pin of a verdict if this is the first use of its reference. Call it after the image verifiers
// have allowed the image and the manifest has been read, so that no digest is pinned that cannot run, and before layers
// are fetched.
//
// It fails with a *[MovedError] if another use was first, and with [imagepin.PinLimitReached] (ErrResourceExhausted).
func (d *Decider) PinFirstUse(ctx context.Context, v Verdict) (Verdict, error) {
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
	return v, nil
}

// makePin makes the pin of a verdict, unless the reference is pinned.
func (d *Decider) makePin(ctx context.Context, v Verdict, use *FirstUse) (pin.Pin, error) {
	if use.inCluster() {
		return d.pinInCluster(ctx, v, use)
	}
	return d.pins.MakeForNamespace(ctx, use.Namespace, use.ID, v.Root, pin.ByUse, use.Retain)
}

// CheckPin fails with a *[MovedError] if the pin of a verdict has moved since it was read.
func (d *Decider) CheckPin(v Verdict) error {
	if _, ok := v.Ref.(reference.Digested); ok {
		return nil
	}
	if now, ok := d.pins.OfLock(v.Ref.String()); ok && now.Root.Digest != v.Root.Digest {
		return &MovedError{Verdict: d.apply(v, now)} // a lock was applied since
	}
	if v.Pin == nil {
		return nil
	}
	now, ok := d.pins.Get(v.Pin.ID)
	if !ok || now.Root.Digest == v.Root.Digest {
		return nil
	}
	return &MovedError{Verdict: d.apply(v, now)}
}

// MovesTag reports whether a verdict decides what its tag resolves to on the node. The node's lock decides, then a pin of
// scope node. Otherwise a pull decides, unless a pin has sent it to another digest than the registry returned: one workload
// must not decide for the others.
func (d *Decider) MovesTag(v Verdict) bool {
	if held, ok := d.pins.OfLock(v.Ref.String()); ok {
		return held.Root.Digest == v.Root.Digest
	}
	if held, ok := d.pins.Get(pin.ID{Scope: policy.NodeScope, Ref: v.Ref.String()}); ok {
		return held.Root.Digest == v.Root.Digest
	}
	if v.Pin == nil || v.Pin.Scope == policy.NodeScope {
		return true
	}
	return v.Registry != nil && v.Registry.Digest == v.Root.Digest
}
