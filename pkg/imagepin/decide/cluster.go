package decide

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// Cluster is the authority for the pins that the nodes of a cluster share. [cluster.Authority] implements it.
type Cluster interface {
	pin.Authority
	// LearnOwner reads the owner of a pod from the API server for later calls. WithKnownOwner returns the pod with its owner
	// as far as the node knows it.
	LearnOwner(ctx context.Context, pod policy.Pod)
	WithKnownOwner(pod policy.Pod) policy.Pod
	// NeverPulls reports whether kubelet may find a normalized reference on the node only, because the pod has the pull policy Never
	// for it. It may send a request. Without an answer, it fails, or never is true and known is false.
	NeverPulls(ctx context.Context, ref string, pod policy.Pod) (never, known bool, _ error)
}

// noCluster is the authority of a node that has pins of its own only.
type noCluster struct{ pin.None }

func (noCluster) LearnOwner(context.Context, policy.Pod) {}

func (noCluster) WithKnownOwner(pod policy.Pod) policy.Pod { return pod }

func (noCluster) NeverPulls(context.Context, string, policy.Pod) (never, known bool, _ error) {
	return false, true, nil
}

// LearnOwner asks for the owner of a pod whose images may be pinned in the cluster, so that later calls for the pod do not have to.
func (d *Decider) LearnOwner(ctx context.Context, pod policy.Pod) { d.cluster().LearnOwner(ctx, pod) }

// WithKnownOwner returns the pod with its owner as far as the node knows it, without a request.
func (d *Decider) WithKnownOwner(pod policy.Pod) policy.Pod { return d.cluster().WithKnownOwner(pod) }

// decideClaimed decides for a tag whose digest the cluster has, and of which the node has no copy yet. As for every tag, mirrors that
// may only pull are not asked.
func (d *Decider) decideClaimed(ctx context.Context, q Request, known pin.Pin) (Verdict, error) {
	v, err := d.authorizePinned(ctx, q, known.Root.Digest, "pinned in the cluster "+claimedBy(known))
	if errdefs.IsNotFound(err) {
		return Verdict{}, goneFromCluster(q, known, err)
	}
	if resolve.MayBeGone(err) {
		err = explained(fmt.Sprintf("pinned in the cluster %s (%s ago) to %s", claimedBy(known), duration.HumanDuration(time.Since(known.MadeAt)), known.Root.Digest),
			inClusterHint("refresh", q.Pod.Namespace, *q.Pod.Owner, ""), err)
	}
	if err != nil {
		return v, err
	}
	v.FirstUse = q.firstUse()
	return v, nil
}

// authorizePinned returns the verdict for a digest that is to be pinned. It asks the registry only if the digest is not on the node, or
// the credential has no proof.
func (d *Decider) authorizePinned(ctx context.Context, q Request, root digest.Digest, why string) (Verdict, error) {
	known := pin.Pin{ID: q.pinID(), Root: ocispec.Descriptor{Digest: root}}
	if local, here := d.onNode(q, &known); here {
		return d.authorize(ctx, q, local, why)
	}
	return d.authorizeDigest(ctx, q, root, why)
}

// claimedBy describes who created an ImagePin and when.
func claimedBy(known pin.Pin) string {
	by := "by another client"
	if known.Claimer != "" {
		by = "by node " + known.Claimer
	}
	return by + " at " + known.MadeAt.UTC().Format(time.RFC3339)
}

// goneFromCluster returns the error for a digest of the cluster that the registry does not have for this node.
func goneFromCluster(q Request, known pin.Pin, err error) error {
	return &imagepin.Error{
		Reason: imagepin.PinnedDigestGone, Ref: q.Ref.String(), Target: q.Target.String(), Class: errdefs.ErrNotFound, Err: err,
		Message: fmt.Sprintf("pinned to %s in the cluster %s, but this digest is neither on the node nor in the registry", known.Root.Digest, claimedBy(known)),
		Hint:    inClusterHint("refresh", q.Pod.Namespace, *q.Pod.Owner, ""),
	}
}

// decideMoved returns the verdict for the digest that another node has pinned in the cluster since v was decided.
func (d *Decider) decideMoved(ctx context.Context, v Verdict, use *pin.FirstUse, now pin.Pin) (Verdict, error) {
	moved, err := d.decideClaimed(ctx, Request{
		Ref: v.Ref, Credential: v.Credential, Pod: use.Pod,
		Policy: policy.Decision{Rule: policy.Rule{Retain: use.Retain}, Scope: use.ID.Scope, Namespace: use.Namespace},
	}, now)
	if err == nil && v.Registry != nil {
		moved.FirstUse.Registry = v.Registry.Digest
	}
	return moved, err
}

// Describe returns the descriptor of a digest of ref's repository if the node has it.
func (d *Decider) Describe(ref reference.Named, root digest.Digest) (ocispec.Descriptor, bool) {
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

// DescribeAtRegistry is [Decider.Describe]. If the node does not have the digest, it asks the registry with the node's credentials.
func (d *Decider) DescribeAtRegistry(ctx context.Context, ref reference.Named, root digest.Digest) (ocispec.Descriptor, error) {
	if desc, ok := d.Describe(ref, root); ok {
		return desc, nil
	}
	byDigest, err := reference.WithDigest(reference.TrimNamed(ref), root)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	v, err := d.resolve(ctx, Request{Ref: byDigest}, byDigest, "")
	return v.Root, err
}

// ReserveDigest reserves space for the content of a digest that a pin for a namespace retains, until release is called. It fails
// with [imagepin.RetainLimitReached] (ErrResourceExhausted).
func (d *Decider) ReserveDigest(ctx context.Context, namespace string, ref reference.Named, root digest.Digest) (release func(), _ error) {
	return d.reserve(ctx, namespace, nil, nil, d.inRepository(ref, root)...)
}
