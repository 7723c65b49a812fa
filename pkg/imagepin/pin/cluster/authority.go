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
	// PullPolicies returns the pull policies that a pod has for an image.
	PullPolicies(ctx context.Context, pod policy.Pod, image string) ([]string, error)
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
	CheckReadable(id pin.ID) error
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

// shares reports whether a pod has the digest of a reference in common with the other nodes of the cluster.
func shares(q pin.Question) bool {
	return q.Policy.Consistency == policy.Workload && !strings.Contains(q.Ref, "@") && mayHaveOwner(q.Pod)
}

// Look implements [pin.Authority]. The pod must have its owner.
func (a *Authority) Look(q pin.Question) (pin.Answer, bool) {
	if q.Pod.Owner == nil || !shares(q) {
		return pin.Answer{}, false
	}
	return a.answer(q, found{pod: q.Pod}), true
}

// Ask implements [pin.Authority]. If q.Record is set, a pin of the node records the answer. If the node does not have the descriptor of
// its digest, the pull of the image records it.
//
// If the API server does not answer, or has a foreign ImagePin, the node's copy of the pin applies. Without one, Ask fails with
// [imagepin.ClusterUnavailable] (ErrUnavailable) or [imagepin.ForeignPin] (ErrFailedPrecondition), or returns a pod whose pins are
// provisional.
func (a *Authority) Ask(ctx context.Context, q pin.Question) (pin.Answer, bool, error) {
	if !shares(q) {
		return pin.Answer{}, false, nil
	}
	f, err := a.ask(ctx, q)
	if err == nil && q.Record {
		if err = a.record(ctx, q, f); err == nil {
			f.provisional, f.dropped = nil, nil
		}
	}
	if err != nil {
		if f.pod, err = a.withoutAnswer(ctx, q, f.pod, err); err != nil {
			return pin.Answer{}, false, err
		}
		f = found{pod: f.pod}
	}
	return a.answer(q, f), f.pod.Owner != nil || f.pod.Provisional, nil
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

// answer returns the answer to a question after something was found.
func (a *Authority) answer(q pin.Question, f found) pin.Answer {
	answer := pin.Answer{Scope: q.Policy.Scope, Pin: f.provisional, Pod: f.pod}
	if f.pod.Owner != nil {
		answer.Scope = policy.OwnerScope(f.pod.Namespace, *f.pod.Owner)
	}
	if answer.Pin != nil {
		return answer
	}
	id := pin.ID{Scope: answer.Scope, Ref: q.Ref}
	if held, ok := a.pins.Get(id); !ok {
		answer.Err = a.pins.CheckReadable(id)
	} else if f.dropped == nil || held.By != pin.ByCluster {
		answer.Pin = &held
	}
	if known, ok := a.claims.Known(f.pod, q.Ref); ok && (answer.Pin == nil || answer.Pin.Root.Digest != known.Digest) {
		answer.Pin = pinOf(id, known)
	}
	return answer
}

// ask reads what the cluster and the node have.
func (a *Authority) ask(ctx context.Context, q pin.Question) (f found, err error) {
	f.pod = q.Pod
	owner, err := a.claims.Owner(ctx, q.Pod)
	if err != nil || owner == nil {
		return f, err
	}
	f.pod.Owner = owner
	held, ok := a.pins.Get(idOf(f.pod, q.Ref))
	if f.claimed, err = a.claims.Lookup(ctx, f.pod, q.Ref, ok && held.By == pin.ByCluster); err != nil || f.claimed != "" {
		return f, err
	}
	// The pin can have been claimed, moved or removed during the request.
	held, ok = a.pins.Get(idOf(f.pod, q.Ref))
	_, again := a.claims.Known(f.pod, q.Ref)
	switch {
	case ok && held.Provisional != nil:
		f.provisional = &held
	case ok && held.By == pin.ByCluster && !again:
		f.dropped = &held
	case !ok:
		f.provisional, err = a.madeForOwner(ctx, q.Ref, f.pod)
	}
	return f, err
}

// idOf returns the pin of a pod's owner, which is known.
func idOf(pod policy.Pod, ref string) pin.ID {
	return pin.ID{Scope: policy.OwnerScope(pod.Namespace, *pod.Owner), Ref: ref}
}

// record brings the node's pin in line with what was found.
func (a *Authority) record(ctx context.Context, q pin.Question, f found) error {
	switch {
	case f.pod.Owner == nil:
		return nil
	case f.claimed != "":
		return a.recordClaimed(ctx, q, f)
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
func (a *Authority) recordClaimed(ctx context.Context, q pin.Question, f found) error {
	id := idOf(f.pod, q.Ref)
	if held, ok := a.pins.Get(id); !ok || held.Root.Digest != f.claimed || held.Provisional != nil {
		ref, err := reference.ParseNamed(q.Ref)
		if err != nil {
			return err
		}
		root, here := a.node.Describe(ref, f.claimed)
		if !here {
			return nil
		}
		if _, err := a.keepCopy(ctx, f.pod, id, root, q.Policy.Retain); err != nil {
			return err
		}
	}
	ownerless, ok := a.madeWithoutOwner(q.Ref, f.pod)
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

// pinOf returns the pin that an ImagePin makes, with only the digest of its descriptor.
func pinOf(id pin.ID, known Pinned) *pin.Pin {
	return &pin.Pin{ID: id, Root: ocispec.Descriptor{Digest: known.Digest}, MadeAt: known.At, By: pin.ByCluster, Claimer: known.Node}
}

// Claim implements [pin.Authority]: it pins a digest for the owner of a pod in the cluster, and keeps a copy on the node. It returns the
// pin of another node if that was first with another digest.
func (a *Authority) Claim(ctx context.Context, use pin.FirstUse, root ocispec.Descriptor) (held pin.Pin, ok bool, err error) {
	if !use.InCluster() {
		return pin.Pin{}, false, nil
	}
	held, err = a.claim(ctx, use, root)
	return held, err == nil, err
}

// claim is Claim for a pin of the cluster.
func (a *Authority) claim(ctx context.Context, use pin.FirstUse, root ocispec.Descriptor) (pin.Pin, error) {
	if use.Pod.Provisional {
		return a.pinProvisionally(ctx, root, use, nil)
	}
	claimed, err := withFailpoints(a.claims.Claim)(ctx, use.Pod, use.ID.Ref, root.Digest)
	held, here := a.pins.Get(use.ID)
	switch {
	case noPin(err) && here && held.Provisional == nil:
		return held, nil
	case noPin(err) && !a.strict:
		return a.pinProvisionally(ctx, root, use, err)
	case err != nil:
		return pin.Pin{}, err
	}
	known, ok := a.claims.Known(use.Pod, use.ID.Ref)
	if !ok {
		known = Pinned{Digest: claimed}
	}
	if known.Digest != root.Digest {
		return *pinOf(use.ID, known), nil
	}
	if here && held.Provisional == nil && held.Root.Digest == known.Digest && (held.Retain || !use.Retain) {
		return held, nil
	}
	held, err = a.copyTo(ctx, use.Pod, use.ID, root, use.Retain)
	if err == nil && use.Registry != "" {
		err = a.pins.RecordDrift(ctx, use.ID, use.Registry)
	}
	return held, err
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

// withoutAnswer returns the pod whose pins apply while the cluster has no usable answer, or the error that it returned.
func (a *Authority) withoutAnswer(ctx context.Context, q pin.Question, pod policy.Pod, err error) (policy.Pod, error) {
	if !noPin(err) {
		return pod, err
	}
	if !errdefs.IsUnavailable(err) && !a.strict {
		log.G(ctx).WithError(err).WithField("ref", q.Ref).Warn("ignoring a foreign ImagePin")
	}
	pod = a.WithKnownOwner(pod)
	if pod.Owner != nil {
		if _, ok := a.pins.Get(idOf(pod, q.Ref)); ok {
			return pod, nil
		}
	}
	if a.strict {
		return pod, err
	}
	pod.Provisional = true
	return pod, nil
}
