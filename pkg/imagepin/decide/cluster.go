package decide

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/docker/go-units"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/claim"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// Cluster shares pins with the other nodes of a Kubernetes cluster. [claim.Claims] implements it. Its errors are
// ErrUnavailable if the API server does not answer.
type Cluster interface {
	// Owner returns the owner of a pod, or nil if it has none.
	Owner(ctx context.Context, pod policy.Pod) (*policy.Owner, error)
	// KnownOwner is Owner without a request. ok is false if it is not known whether the pod has an owner.
	KnownOwner(pod policy.Pod) (_ *policy.Owner, ok bool)
	// Lookup returns the digest that the cluster has for an image of the pod's owner, or "". copied reports that the node has
	// a copy of the ImagePin. Then Lookup returns "" only if the ImagePin was certainly deleted.
	Lookup(ctx context.Context, pod policy.Pod, image string, copied bool) (digest.Digest, error)
	// Known is the result of the last Lookup or Claim for the pod's owner.
	Known(pod policy.Pod, image string) (claim.Pinned, bool)
	// Claim pins an image for the pod's owner, unless it is pinned. It returns the digest that the cluster has.
	Claim(ctx context.Context, pod policy.Pod, image string, d digest.Digest) (digest.Digest, error)
	// ClaimProvisional is Claim for a provisional pin. It does not report that another node was first.
	ClaimProvisional(ctx context.Context, pod policy.Pod, image string, d digest.Digest) (digest.Digest, error)
	// Lost reports that a provisional pin, which was made for the pod with the digest d, has given way to what the cluster
	// has.
	Lost(pod policy.Pod, image string, d digest.Digest, now claim.Pinned)
}

// ClusterConfig is how a Decider uses the pins of a cluster.
type ClusterConfig struct {
	Cluster
	// Strict reports that a pod fails whose pin is unknown while the API server does not answer. Otherwise the node pins the
	// image provisionally, and claims the pin later.
	Strict bool
}

// claimFunc is the type of [Cluster.Claim].
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

const (
	// sourceAnnotation is the annotation that kubelet sets on every pod, with the source of the pod (pkg/kubelet/types).
	sourceAnnotation = "kubernetes.io/config.source"
	// sourceAPI is its value for pods of the API server. Other pods are static, and the API server has mirrors of them
	// with other UIDs.
	sourceAPI = "api"
)

// InCluster returns the pod with its owner, after the node's pin for ref has been brought in line with the cluster's. It
// returns the pod as it is if the policy does not pin ref for a workload, or the node does not use the Kubernetes API.
//
// If the API server does not answer, or has a foreign ImagePin, the node's copy of the pin applies. Without one, InCluster fails
// with [imagepin.ClusterUnavailable] (ErrUnavailable) or [imagepin.ForeignPin] (ErrFailedPrecondition), or returns a pod whose
// pins are provisional.
func (d *Decider) InCluster(ctx context.Context, ref reference.Named, pod policy.Pod) (policy.Pod, error) {
	c := d.cluster()
	if c.Cluster == nil || !d.SharesPins(ref.String(), pod) {
		return pod, nil
	}
	owner, err := c.Owner(ctx, pod)
	if err != nil {
		return d.withoutAnswer(ctx, c, ref, pod, err)
	}
	if pod.Owner = owner; owner == nil {
		return pod, nil
	}
	held, ok := d.pins.Get(pin.ID{Scope: policy.OwnerScope(pod.Namespace, *owner), Ref: ref.String()})
	claimed, err := c.Lookup(ctx, pod, ref.String(), ok && held.By == pin.ByCluster)
	if err != nil {
		return d.withoutAnswer(ctx, c, ref, pod, err)
	}
	if err := d.follow(ctx, c, ref, pod, claimed); err != nil {
		return d.withoutAnswer(ctx, c, ref, pod, err)
	}
	return pod, nil
}

// SharesAnyPins reports whether the node uses the pins of a cluster.
func (d *Decider) SharesAnyPins() bool { return d.cluster().Cluster != nil }

// SharesPins reports whether a pod has the digest of a reference in common with the other nodes of the cluster.
func (d *Decider) SharesPins(ref string, pod policy.Pod) bool {
	if d.cluster().Cluster == nil || strings.Contains(ref, "@") || !mayHaveOwner(pod) {
		return false
	}
	if _, locked := d.pins.OfLock(ref); locked {
		return false
	}
	decision, _ := d.policy().Decide(ref, pod)
	return decision.Consistency == policy.Workload
}

// mayHaveOwner reports whether the API server can know the owner of a pod.
func mayHaveOwner(pod policy.Pod) bool {
	source, ok := pod.Annotations[sourceAnnotation]
	return pod.Namespace != "" && pod.Name != "" && pod.UID != "" && (!ok || source == sourceAPI)
}

// LearnOwner asks the API server for the owner of a pod whose images may be pinned in the cluster, so that later calls for
// the pod do not have to. Those report if it fails. It ends with ctx.
func (d *Decider) LearnOwner(ctx context.Context, pod policy.Pod) {
	if c := d.cluster(); c.Cluster != nil && mayHaveOwner(pod) && d.policy().PinsWorkloads() {
		if _, err := c.Owner(ctx, pod); err != nil {
			log.G(ctx).WithError(err).Debug("cannot read the owner of a pod yet")
		}
	}
}

// WithKnownOwner returns the pod with its owner as far as the node knows it, without a request: from an earlier call for
// the pod, or from the node's pins.
func (d *Decider) WithKnownOwner(pod policy.Pod) policy.Pod {
	c := d.cluster()
	if c.Cluster == nil || pod.Owner != nil || pod.UID == "" {
		return pod
	}
	known, ok := c.KnownOwner(pod)
	if pod.Owner = known; !ok {
		pod.Owner = d.likelyOwner(pod)
	}
	return pod
}

// likelyOwner returns the owner of the node's pins that is most likely the owner of a pod. It is used if the API server
// does not answer.
func (d *Decider) likelyOwner(pod policy.Pod) *policy.Owner {
	var found *pin.Pin
	for _, held := range d.pins.List() {
		owner, ok := held.Scope.Owner()
		if !ok || held.Scope.Namespace() != pod.Namespace || !owner.MayOwn(pod) {
			continue
		}
		if found == nil || likelier(owner, held, *found) {
			found = &held
		}
	}
	if found == nil {
		return nil
	}
	owner, _ := found.Scope.Owner()
	return &owner
}

// likelier reports whether owner, which has the pin held, is more likely the owner of a pod than that of another pin. Of two
// names, the longer one has more in common with the pod's. An owner that was deleted and created again has the same name:
// the later one was used last.
func likelier(owner policy.Owner, held, than pin.Pin) bool {
	other, _ := than.Scope.Owner()
	if len(owner.Name) != len(other.Name) {
		return len(owner.Name) > len(other.Name)
	}
	return held.UsedAt.After(than.UsedAt)
}

// noPin reports whether the cluster had no usable answer: the API server did not answer, or the ImagePin with the name of the
// pin is for something else. Whoever can create that one must not keep the pods of others from starting.
func noPin(err error) bool {
	var known *imagepin.Error
	return errdefs.IsUnavailable(err) || errors.As(err, &known) && known.Reason == imagepin.ForeignPin
}

// withoutAnswer returns the pod for a call while the cluster has no usable answer, or the error that it returned.
func (d *Decider) withoutAnswer(ctx context.Context, c ClusterConfig, ref reference.Named, pod policy.Pod, err error) (policy.Pod, error) {
	if !noPin(err) {
		return pod, err
	}
	if !errdefs.IsUnavailable(err) && !c.Strict {
		log.G(ctx).WithError(err).WithField("ref", ref.String()).Warn("ignoring a foreign ImagePin")
	}
	pod = d.WithKnownOwner(pod)
	if pod.Owner != nil {
		if _, ok := d.pins.Get(pin.ID{Scope: policy.OwnerScope(pod.Namespace, *pod.Owner), Ref: ref.String()}); ok {
			return pod, nil
		}
	}
	if c.Strict {
		return pod, err
	}
	pod.Provisional = true
	return pod, nil
}

// follow brings the node's copy of a pin in line with the cluster's. claimed is the digest that the cluster has, or "". If
// the node does not have the descriptor of the digest, the copy follows when the image is pulled.
func (d *Decider) follow(ctx context.Context, c ClusterConfig, ref reference.Named, pod policy.Pod, claimed digest.Digest) error {
	if claimed == "" {
		return d.followNone(ctx, c, ref, pod)
	}
	id := pin.ID{Scope: policy.OwnerScope(pod.Namespace, *pod.Owner), Ref: ref.String()}
	if held, ok := d.pins.Get(id); !ok || held.Root.Digest != claimed || held.Provisional != nil {
		root, here := d.describe(ref, claimed)
		if !here {
			return nil
		}
		if _, err := d.keepCopy(ctx, c, pod, id, root, d.retains(ref, pod)); err != nil {
			return err
		}
	}
	ownerless, ok := d.madeWithoutOwner(ref, pod)
	if !ok {
		return nil
	}
	// If the pod for which the pin was made is gone, nobody knows its owner. The pin is of no use then, because the cluster
	// has a pin for the pods with these labels.
	if same, err := d.ownerRan(ctx, c, ownerless, pod); !isGone(err) && (err != nil || !same) {
		return nil // Settle claims the pin
	}
	return d.giveWay(ctx, c, pod, ownerless, claimed)
}

// followNone is follow if the cluster has no pin. It claims the node's provisional pin for the owner of pod, or drops a copy
// of a pin that was removed from the cluster, so that the tag is resolved again.
func (d *Decider) followNone(ctx context.Context, c ClusterConfig, ref reference.Named, pod policy.Pod) error {
	held, ok := d.pins.Get(pin.ID{Scope: policy.OwnerScope(pod.Namespace, *pod.Owner), Ref: ref.String()})
	provisional, found := held, ok && held.Provisional != nil
	if !ok {
		var err error
		if provisional, found, err = d.madeForOwner(ctx, c, ref, pod); err != nil {
			return err
		}
	}
	if found {
		_, err := d.settle(ctx, c, provisional, pod)
		if isUndescribed(err) {
			return nil // the pull has the credential of the pod
		}
		return err
	}
	if _, again := c.Known(pod, ref.String()); ok && held.By == pin.ByCluster && !again {
		_, err := d.pins.Unfollow(ctx, held)
		return err
	}
	return nil
}

func (d *Decider) retains(ref reference.Named, pod policy.Pod) bool {
	decision, _ := d.policy().Decide(ref.String(), pod)
	return decision.Retain
}

// describe returns the descriptor of a digest of ref's repository if the node has it.
func (d *Decider) describe(ref reference.Named, root digest.Digest) (ocispec.Descriptor, bool) {
	for _, e := range d.inRepository(ref, root) {
		return e.Root, true
	}
	for _, held := range d.pins.Scopes(ref.String()) {
		if held.Root.Digest == root {
			return held.Root, true
		}
	}
	return ocispec.Descriptor{}, false
}

// keepCopy records the node's copy of a pin of the cluster. pod is a pod of its owner.
func (d *Decider) keepCopy(ctx context.Context, c ClusterConfig, pod policy.Pod, id pin.ID, root ocispec.Descriptor, retain bool) (pin.Pin, error) {
	if held, ok := d.pins.Get(id); retain && (!ok || held.Root.Digest != root.Digest) {
		ref, err := reference.ParseNamed(id.Ref)
		if err != nil {
			return pin.Pin{}, err
		}
		release, err := d.reserve(ctx, id.Scope.Namespace(), nil, nil, d.inRepository(ref, root.Digest)...)
		if err != nil {
			return pin.Pin{}, err
		}
		defer release()
	}
	return d.followTo(ctx, c, pod, id, root, retain)
}

// followTo is keepCopy without a reservation for retained content.
func (d *Decider) followTo(ctx context.Context, c ClusterConfig, pod policy.Pod, id pin.ID, root ocispec.Descriptor, retain bool) (pin.Pin, error) {
	known, _ := c.Known(pod, id.Ref)
	followed, err := d.pins.Follow(ctx, id, root, retain, known.Node)
	if followed.GaveWay != nil {
		reportLost(ctx, c, pod, *followed.GaveWay, root.Digest)
	}
	return followed.Pin, err
}

// claimed returns the digest that the cluster has for a request, or "" if that is the digest of the node's copy.
func (d *Decider) claimed(q Request, held *pin.Pin) (claim.Pinned, bool) {
	c := d.cluster()
	if c.Cluster == nil || q.Pod.Owner == nil || q.Policy.Scope != policy.OwnerScope(q.Pod.Namespace, *q.Pod.Owner) {
		return claim.Pinned{}, false
	}
	known, ok := c.Known(q.Pod, q.Ref.String())
	return known, ok && (held == nil || held.Root.Digest != known.Digest)
}

// decideClaimed decides for a tag whose digest the cluster has, and of which the node has no copy yet. It asks the
// registry only if the digest is not on the node, or the credential has no proof. As for every tag, mirrors that may only
// pull are not asked.
func (d *Decider) decideClaimed(ctx context.Context, q Request, known claim.Pinned) (Verdict, error) {
	v, err := d.authorizeClaimed(ctx, q, known)
	if errdefs.IsNotFound(err) {
		return Verdict{}, goneFromCluster(q, known, err)
	}
	if resolve.MayBeGone(err) {
		err = explained(fmt.Sprintf("pinned in the cluster %s (%s ago) to %s", known, units.HumanDuration(time.Since(known.At)), known.Digest),
			inClusterHint("refresh", q.Pod.Namespace, *q.Pod.Owner, ""), err)
	}
	if err != nil {
		return v, err
	}
	v.FirstUse = q.firstUse()
	return v, nil
}

// authorizeClaimed returns the verdict for the digest that the cluster has.
func (d *Decider) authorizeClaimed(ctx context.Context, q Request, known claim.Pinned) (Verdict, error) {
	why := "pinned in the cluster " + known.String()
	claimed := pin.Pin{ID: q.pinID(), Root: ocispec.Descriptor{Digest: known.Digest}}
	if local, here := d.onNode(q, &claimed); here {
		return d.authorize(ctx, q, local, why)
	}
	return d.authorizeDigest(ctx, q, known.Digest, why)
}

// goneFromCluster returns the error for a digest of the cluster that the registry does not have for this node.
func goneFromCluster(q Request, known claim.Pinned, err error) error {
	return &imagepin.Error{
		Reason: imagepin.PinnedDigestGone, Ref: q.Ref.String(), Target: q.Target.String(), Class: errdefs.ErrNotFound, Err: err,
		Message: fmt.Sprintf("pinned to %s in the cluster %s, but this digest is neither on the node nor in the registry", known.Digest, known),
		Hint:    inClusterHint("refresh", q.Pod.Namespace, *q.Pod.Owner, ""),
	}
}

// pinInCluster pins a verdict for its owner in the cluster, and keeps a copy on the node. It fails with a *[MovedError] if
// the cluster has another digest.
func (d *Decider) pinInCluster(ctx context.Context, v Verdict, use *FirstUse) (pin.Pin, error) {
	c := d.cluster()
	if use.Pod.Provisional {
		return d.pinProvisionally(ctx, v.Root, use, nil)
	}
	claimed, err := withFailpoints(c.Claim)(ctx, use.Pod, use.ID.Ref, v.Root.Digest)
	held, here := d.pins.Get(use.ID)
	switch {
	case noPin(err) && here && held.Provisional == nil:
		return held, nil
	case noPin(err) && !c.Strict:
		return d.pinProvisionally(ctx, v.Root, use, err)
	case err != nil:
		return pin.Pin{}, err
	}
	known, ok := c.Known(use.Pod, use.ID.Ref)
	if !ok {
		known = claim.Pinned{Digest: claimed}
	}
	if known.Digest == v.Root.Digest {
		if here && held.Provisional == nil && held.Root.Digest == known.Digest && (held.Retain || !use.Retain) {
			return held, nil
		}
		held, err := d.followTo(ctx, c, use.Pod, use.ID, v.Root, use.Retain)
		if err != nil || use.Registry == "" {
			return held, err
		}
		return held, d.pins.RecordDrift(ctx, use.ID, use.Registry)
	}
	q := Request{
		Ref: v.Ref, Credential: v.Credential, Pod: use.Pod,
		Policy: policy.Decision{Rule: policy.Rule{Retain: use.Retain}, Scope: use.ID.Scope, Namespace: use.Namespace},
	}
	moved, err := d.decideClaimed(ctx, q, known)
	if err != nil {
		return pin.Pin{}, err
	}
	if v.Registry != nil {
		moved.FirstUse.Registry = v.Registry.Digest
	}
	return pin.Pin{}, &MovedError{Verdict: moved}
}

// PinnedDigest returns the digest that a reference is pinned to for a pod. ok is false if it is not pinned. The node may
// not have the digest. Errors are those of [Decider.InCluster].
func (d *Decider) PinnedDigest(ctx context.Context, ref reference.Named, pod policy.Pod) (_ digest.Digest, ok bool, _ error) {
	pod, err := d.InCluster(ctx, ref, pod)
	if err != nil {
		return "", false, err
	}
	effective, _ := d.EffectivePolicy(ref.String(), pod)
	held, ok := d.pins.Get(pin.ID{Scope: effective.Scope, Ref: ref.String()})
	if known, other := d.claimed(Request{Ref: ref, Policy: effective, Pod: pod}, heldOrNil(held, ok)); other {
		return known.Digest, true, nil
	}
	return held.Root.Digest, ok, nil
}

func heldOrNil(held pin.Pin, ok bool) *pin.Pin {
	if !ok {
		return nil
	}
	return &held
}
