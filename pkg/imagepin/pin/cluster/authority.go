package cluster

import (
	"context"
	"errors"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Claimer finds and creates ImagePins. [Claims] implements it. Its errors are ErrUnavailable if the API server does not answer.
type Claimer interface {
	// Owner returns the owner of a pod, or nil if it has none.
	Owner(ctx context.Context, pod policy.Pod) (*policy.Owner, error)
	// KnownOwner is Owner without a request. ok is false if it is not known whether the pod has an owner.
	KnownOwner(pod policy.Pod) (_ *policy.Owner, ok bool)
	// Lookup returns the digest that the cluster has for an image of the pod's owner, or "". copied reports that the node has
	// a copy of the ImagePin. Then Lookup returns "" only if the ImagePin was certainly deleted.
	Lookup(ctx context.Context, pod policy.Pod, image string, copied bool) (digest.Digest, error)
	// Known is the result of the last Lookup or Claim for the pod's owner.
	Known(pod policy.Pod, image string) (Pinned, bool)
	// Claim pins an image for the pod's owner, unless it is pinned. It returns the digest that the cluster has.
	Claim(ctx context.Context, pod policy.Pod, image string, d digest.Digest) (digest.Digest, error)
	// ClaimProvisional is Claim for a provisional pin. It does not report that another node was first.
	ClaimProvisional(ctx context.Context, pod policy.Pod, image string, d digest.Digest) (digest.Digest, error)
	// Lost reports that a provisional pin, which was made for the pod with the digest d, has given way to what the cluster
	// has.
	Lost(pod policy.Pod, image string, d digest.Digest, now Pinned)
}

// Pins has the pins of the node, and so the copies of ImagePins. [pin.Store] implements it.
type Pins interface {
	Get(id pin.ID) (pin.Pin, bool)
	List() []pin.Pin
	Provisional() []pin.Pin
	Follow(ctx context.Context, id pin.ID, root ocispec.Descriptor, retain bool, claimer string) (pin.Followed, error)
	Unfollow(ctx context.Context, read pin.Pin) (removed bool, _ error)
	MakeProvisional(ctx context.Context, id pin.ID, root ocispec.Descriptor, retain bool, pod pin.Claimant) (pin.Pin, error)
	RecordDrift(ctx context.Context, id pin.ID, now digest.Digest) error
}

// Node is what the authority needs of the node. [decide.Decider] implements it.
type Node interface {
	// Describe returns the descriptor of a digest of ref's repository if the node has it.
	Describe(ref reference.Named, root digest.Digest) (ocispec.Descriptor, bool)
	// DescribeAtRegistry is Describe. If the node does not have it, it asks the registry with the node's credentials.
	DescribeAtRegistry(ctx context.Context, ref reference.Named, root digest.Digest) (ocispec.Descriptor, error)
	// ReserveDigest reserves space for the content of a digest that a pin for a namespace retains, until release is called.
	ReserveDigest(ctx context.Context, namespace string, ref reference.Named, root digest.Digest) (release func(), _ error)
}

// Config has the dependencies of an [Authority]. All fields are required.
type Config struct {
	Claims Claimer
	Pins   Pins
	Node   Node
	// Policy returns the current rules.
	Policy func() *policy.Policy
	// Strict reports that a pod fails whose pin is unknown while the API server does not answer. Otherwise the node pins the
	// image provisionally, and claims the pin later.
	Strict bool
}

// Authority answers which digest an image means for the pods of a revision, in all of the cluster. It is safe for concurrent use.
type Authority struct {
	claims Claimer
	pins   Pins
	node   Node
	policy func() *policy.Policy
	strict bool
}

// New returns an Authority.
func New(c Config) *Authority {
	return &Authority{claims: c.Claims, pins: c.Pins, node: c.Node, policy: c.Policy, strict: c.Strict}
}

// Shares reports whether a pod has the digest of a reference in common with the other nodes of the cluster, unless the node's
// lock decides it.
func (a *Authority) Shares(ref string, pod policy.Pod) bool {
	if strings.Contains(ref, "@") || !mayHaveOwner(pod) {
		return false
	}
	decision, _ := a.policy().Decide(ref, pod)
	return decision.Consistency == policy.Workload
}

// Ask asks what the cluster has for a reference and a pod that shares it, and writes nothing. The pod in the answer has its owner.
//
// If the API server does not answer, or has a foreign ImagePin, the node's copy of the pin applies. Without one, Ask fails with
// [imagepin.ClusterUnavailable] (ErrUnavailable) or [imagepin.ForeignPin] (ErrFailedPrecondition), or returns a pod whose pins are
// provisional.
func (a *Authority) Ask(ctx context.Context, ref reference.Named, pod policy.Pod) (pin.Shared, error) {
	f, err := a.ask(ctx, ref, pod)
	if err != nil {
		return a.withoutAnswer(ctx, ref, f.pod, err)
	}
	return f.answer(), nil
}

// Follow is [Authority.Ask]. It also records what it has learned, as a pin of the node. If the node does not have the descriptor
// of the digest, the pull of the image records it.
func (a *Authority) Follow(ctx context.Context, ref reference.Named, pod policy.Pod) (policy.Pod, error) {
	f, err := a.ask(ctx, ref, pod)
	if err == nil {
		err = a.record(ctx, ref, f)
	}
	if err == nil {
		return f.pod, nil
	}
	shared, err := a.withoutAnswer(ctx, ref, f.pod, err)
	return shared.Pod, err
}

// found is what the cluster and the node have for a reference and a pod.
type found struct {
	pod     policy.Pod    // with its owner
	claimed digest.Digest // that the cluster has, or ""
	// provisional is the node's pin that is to be claimed for the owner, or nil.
	provisional *pin.Pin
	// dropped is the copy of an ImagePin that was deleted, or nil.
	dropped *pin.Pin
}

func (f found) answer() pin.Shared {
	return pin.Shared{Pod: f.pod, Provisional: f.provisional, Dropped: f.dropped != nil}
}

// ask reads what the cluster and the node have.
func (a *Authority) ask(ctx context.Context, ref reference.Named, pod policy.Pod) (f found, err error) {
	f.pod = pod
	owner, err := a.claims.Owner(ctx, pod)
	if err != nil || owner == nil {
		return f, err
	}
	f.pod.Owner = owner
	held, ok := a.pins.Get(idOf(f.pod, ref.String()))
	if f.claimed, err = a.claims.Lookup(ctx, f.pod, ref.String(), ok && held.By == pin.ByCluster); err != nil || f.claimed != "" {
		return f, err
	}
	// The pin can have been claimed, moved or removed during the request.
	held, ok = a.pins.Get(idOf(f.pod, ref.String()))
	_, again := a.claims.Known(f.pod, ref.String())
	switch {
	case ok && held.Provisional != nil:
		f.provisional = &held
	case ok && held.By == pin.ByCluster && !again:
		f.dropped = &held
	case !ok:
		f.provisional, err = a.madeForOwner(ctx, ref, f.pod)
	}
	return f, err
}

// idOf returns the pin of a pod's owner, which is known.
func idOf(pod policy.Pod, ref string) pin.ID {
	return pin.ID{Scope: policy.OwnerScope(pod.Namespace, *pod.Owner), Ref: ref}
}

// record brings the node's pin in line with what was found.
func (a *Authority) record(ctx context.Context, ref reference.Named, f found) error {
	switch {
	case f.pod.Owner == nil:
		return nil
	case f.claimed != "":
		return a.recordClaimed(ctx, ref, f)
	case f.dropped != nil:
		_, err := a.pins.Unfollow(ctx, *f.dropped)
		return err
	case f.provisional != nil:
		_, err := a.settle(ctx, *f.provisional, f.pod)
		if isUndescribed(err) {
			return nil // the pull has the credential of the pod
		}
		return err
	}
	return nil
}

// recordClaimed records the node's copy of an ImagePin if the node has the descriptor of its digest, and removes a provisional pin
// that was made while the owner was not known.
func (a *Authority) recordClaimed(ctx context.Context, ref reference.Named, f found) error {
	id := idOf(f.pod, ref.String())
	if held, ok := a.pins.Get(id); !ok || held.Root.Digest != f.claimed || held.Provisional != nil {
		root, here := a.node.Describe(ref, f.claimed)
		if !here {
			return nil
		}
		decision, _ := a.policy().Decide(ref.String(), f.pod)
		if _, err := a.keepCopy(ctx, f.pod, id, root, decision.Retain); err != nil {
			return err
		}
	}
	ownerless, ok := a.madeWithoutOwner(ref, f.pod)
	if !ok {
		return nil
	}
	// If the pod for which the pin was made is gone, nobody knows its owner. The pin is of no use then, because the cluster
	// has a pin for the pods with these labels.
	if same, err := a.ownerRan(ctx, ownerless, f.pod); !isGone(err) && (err != nil || !same) {
		return nil // Settle claims the pin
	}
	return a.giveWay(ctx, f.pod, ownerless, f.claimed)
}

// keepCopy records the node's copy of a pin of the cluster. pod is a pod of its owner.
func (a *Authority) keepCopy(ctx context.Context, pod policy.Pod, id pin.ID, root ocispec.Descriptor, retain bool) (pin.Pin, error) {
	if held, ok := a.pins.Get(id); retain && (!ok || held.Root.Digest != root.Digest) {
		ref, err := reference.ParseNamed(id.Ref)
		if err != nil {
			return pin.Pin{}, err
		}
		release, err := a.node.ReserveDigest(ctx, id.Scope.Namespace(), ref, root.Digest)
		if err != nil {
			return pin.Pin{}, err
		}
		defer release()
	}
	return a.copyTo(ctx, pod, id, root, retain)
}

// copyTo is keepCopy without a reservation for retained content.
func (a *Authority) copyTo(ctx context.Context, pod policy.Pod, id pin.ID, root ocispec.Descriptor, retain bool) (pin.Pin, error) {
	known, _ := a.claims.Known(pod, id.Ref)
	followed, err := a.pins.Follow(ctx, id, root, retain, known.Node)
	if followed.GaveWay != nil {
		a.reportLost(ctx, pod, *followed.GaveWay, root.Digest)
	}
	return followed.Pin, err
}

// Known returns what the ImagePin of an image for the pod's owner, which the pod has, said when it was last read. The descriptor
// has only the digest.
func (a *Authority) Known(pod policy.Pod, ref string) (pin.Pin, bool) {
	if pod.Owner == nil {
		return pin.Pin{}, false
	}
	known, ok := a.claims.Known(pod, ref)
	if !ok {
		return pin.Pin{}, false
	}
	return pinOf(idOf(pod, ref), known), true
}

func pinOf(id pin.ID, known Pinned) pin.Pin {
	return pin.Pin{ID: id, Root: ocispec.Descriptor{Digest: known.Digest}, MadeAt: known.At, By: pin.ByCluster, Claimer: known.Node}
}

// Claim pins a digest for the owner of a pod in the cluster, and keeps a copy on the node. It returns the pin that applies: that of
// another node if it was first, of which recorded is false, because the node has no copy of it yet.
func (a *Authority) Claim(ctx context.Context, use pin.FirstUse, root ocispec.Descriptor) (held pin.Pin, recorded bool, err error) {
	if use.Pod.Provisional {
		held, err = a.pinProvisionally(ctx, root, use, nil)
		return held, err == nil, err
	}
	claimed, err := withFailpoints(a.claims.Claim)(ctx, use.Pod, use.ID.Ref, root.Digest)
	held, here := a.pins.Get(use.ID)
	switch {
	case noPin(err) && here && held.Provisional == nil:
		return held, true, nil
	case noPin(err) && !a.strict:
		held, err = a.pinProvisionally(ctx, root, use, err)
		return held, err == nil, err
	case err != nil:
		return pin.Pin{}, false, err
	}
	known, ok := a.claims.Known(use.Pod, use.ID.Ref)
	if !ok {
		known = Pinned{Digest: claimed}
	}
	if known.Digest != root.Digest {
		return pinOf(use.ID, known), false, nil
	}
	if here && held.Provisional == nil && held.Root.Digest == known.Digest && (held.Retain || !use.Retain) {
		return held, true, nil
	}
	held, err = a.copyTo(ctx, use.Pod, use.ID, root, use.Retain)
	if err == nil && use.Registry != "" {
		err = a.pins.RecordDrift(ctx, use.ID, use.Registry)
	}
	return held, err == nil, err
}

// claimFunc is the type of [Claimer.Claim].
type claimFunc func(ctx context.Context, pod policy.Pod, image string, d digest.Digest) (digest.Digest, error)

// withFailpoints returns claim with failpoints.
func withFailpoints(claim claimFunc) claimFunc {
	return func(ctx context.Context, pod policy.Pod, image string, d digest.Digest) (digest.Digest, error) {
		failpoint.Reach("claim.create")
		claimed, err := claim(ctx, pod, image, d)
		if err == nil {
			failpoint.Reach("claim.created")
		}
		return claimed, err
	}
}

// noPin reports whether the cluster had no usable answer: the API server did not answer, or the ImagePin with the name of the
// pin is for something else. Whoever can create that one must not keep the pods of others from starting.
func noPin(err error) bool {
	var known *imagepin.Error
	return errdefs.IsUnavailable(err) || errors.As(err, &known) && known.Reason == imagepin.ForeignPin
}

// withoutAnswer returns the answer for a call while the cluster has no usable answer, or the error that it returned.
func (a *Authority) withoutAnswer(ctx context.Context, ref reference.Named, pod policy.Pod, err error) (pin.Shared, error) {
	if !noPin(err) {
		return pin.Shared{Pod: pod}, err
	}
	if !errdefs.IsUnavailable(err) && !a.strict {
		log.G(ctx).WithError(err).WithField("ref", ref.String()).Warn("ignoring a foreign ImagePin")
	}
	pod = a.WithKnownOwner(pod)
	if pod.Owner != nil {
		if _, ok := a.pins.Get(idOf(pod, ref.String())); ok {
			return pin.Shared{Pod: pod}, nil
		}
	}
	if a.strict {
		return pin.Shared{Pod: pod}, err
	}
	pod.Provisional = true
	return pin.Shared{Pod: pod}, nil
}
