package decide

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Config has the dependencies of a [Decider]. All fields are required, except Cluster, Lock, NotInLock and LookedUp.
type Config struct {
	// Policy returns the current rules.
	Policy   func() *policy.Policy
	Pins     Pins
	Images   Images
	Proofs   Proofs
	Registry Registry
	Retained Retained
	// Cluster returns the authority for the pins of a cluster. If it is nil or returns nil, every node has pins of its own.
	Cluster func() Cluster
	// Lock is the lock of the node. If it is nil, the node has none.
	Lock Lock
	// NotInLock is called for each use of an image that the rules want in the lock and that is not. It may be nil.
	NotInLock func(policy.Locked)
	// LookedUp is called with the digest that a registry has returned for a pinned tag. It may be nil.
	LookedUp func(ref string, tag digest.Digest)
}

// Decider decides which digest a reference resolves to. It is safe for concurrent use.
type Decider struct {
	policy    func() *policy.Policy
	pins      Pins
	images    Images
	proofs    Proofs
	registry  Registry
	retained  Retained
	cluster   func() Cluster // never returns nil
	lock      Lock
	notInLock func(policy.Locked)
	silence   silence
	lookedUp  func(ref string, tag digest.Digest)
}

// New returns a Decider.
func New(c Config) *Decider {
	if c.Lock == nil {
		c.Lock = noLock{}
	}
	if c.NotInLock == nil {
		c.NotInLock = func(policy.Locked) {}
	}
	if c.LookedUp == nil {
		c.LookedUp = func(string, digest.Digest) {}
	}
	return &Decider{
		lock: c.Lock, notInLock: c.NotInLock, lookedUp: c.LookedUp, silence: newSilence(),
		policy: c.Policy, pins: c.Pins, images: c.Images, proofs: c.Proofs, registry: c.Registry, retained: c.Retained,
		cluster: func() Cluster {
			if c.Cluster != nil {
				if now := c.Cluster(); now != nil {
					return now
				}
			}
			return noCluster{}
		},
	}
}

// Call is a call that needs the digest of a reference.
type Call struct {
	Ref        reference.Named // normalized, see [imagepin.ParseReference]
	Credential resolve.Credential
	// Pod is the pod of the call. The zero value means no pod.
	Pod policy.Pod
	// Target is the target of the call. An image on the node for this target takes precedence over images for others.
	Target runtimeplatform.Target
	// OutsideLock allows an image that the node's lock does not name, whatever the rules say.
	OutsideLock bool
	// Running returns the digest that a container of the pod has for Ref, or "". It is called only if the revision of the pod has no
	// pin, see [Request.Unpinned]. It may be nil.
	Running func(context.Context) (digest.Digest, error)
}

// Ask asks what the policy and the cluster say about a call, and records what it has learned from the cluster. The request is to be
// decided by [Decider.Decide].
//
// It fails with [imagepin.NotInLock] (ErrPermissionDenied), [imagepin.ClusterUnavailable] (ErrUnavailable) and
// [imagepin.ForeignPin] (ErrFailedPrecondition).
func (d *Decider) Ask(ctx context.Context, c Call) (Request, error) {
	if !c.OutsideLock {
		if err := d.checkInLock(ctx, c.Ref, ""); err != nil {
			return Request{}, err
		}
	}
	q, err := d.request(ctx, c.Ref, c.Pod)
	q.Credential, q.Target = c.Credential, c.Target
	if err == nil && q.Unpinned && c.Running != nil {
		q.Running, err = c.Running(ctx)
	}
	return q, err
}

// Request is the input of a decision. [Decider.Ask] returns it.
type Request struct {
	Ref        reference.Named
	Credential resolve.Credential
	Policy     policy.Decision
	// Pod is the pod of the call, with its owner.
	Pod policy.Pod
	// Pin is the pin of the reference for the pod when the authorities were asked, or nil.
	Pin *pin.Pin
	// New reports that the revision of the pod has no pin, and that the rule wants its tag to be resolved first. Unpinned is the same,
	// but also true while the Kubernetes API does not answer.
	New, Unpinned bool
	// Running is the digest that a container of the pod has for Ref, or "". It decides for a revision without a pin.
	Running digest.Digest
	Target  runtimeplatform.Target
	// DryRun does not change pins.
	DryRun bool

	err error // why the pin cannot be used, or nil
}

// verdict returns a verdict without an answer from the registry.
func (q Request) verdict(root ocispec.Descriptor, why string) Verdict {
	return Verdict{Ref: q.Ref, Credential: q.Credential, Root: root, Why: why, Namespace: q.Pod.Namespace}
}

// proved returns a verdict that a recorded proof allows.
func (q Request) proved(root ocispec.Descriptor, used, why string) Verdict {
	v := q.verdict(root, why)
	v.UsedProof = used
	return v
}

// Verdict is the digest that a reference resolves to for one call, and why.
type Verdict struct {
	Ref        reference.Named
	Credential resolve.Credential
	// Root is the descriptor to run: an index or a manifest.
	Root ocispec.Descriptor
	// Why is the reason for Root, as text.
	Why string
	// Registry is what Ref resolves to in the registry. It is nil if the registry was not asked or did not answer.
	Registry *ocispec.Descriptor
	// RegistryError is the reason why the registry did not answer. In a dry run, it can also be that it does not have the tag.
	RegistryError error
	// Host is the registry host that answered.
	Host string
	// Session can fetch Root. It is nil if the registry was not asked.
	Session *resolve.Session
	// Proof is the proof of Credential for Root. It is empty if no registry accepted the credential in this call.
	Proof string
	// UsedProof is the recorded proof that allows Root without a request to the registry. It is empty if there was one, or if none is
	// needed.
	UsedProof string
	// Namespace is the Kubernetes namespace of the pod that uses the proof.
	Namespace string
	// Pin is the pin that decided, or nil.
	Pin *pin.Pin
	// FirstUse is the pin that this use of Root makes, or nil. See [Decider.Claim].
	FirstUse *pin.FirstUse
	// Moves are the pins that a refresh moves to Root when it is ready.
	Moves []pin.Pin
}

// Fallback reports whether the image on the node is used because the registry did not answer.
func (v Verdict) Fallback() bool { return v.RegistryError != nil && v.Root.Digest != "" }

// Retains reports whether a pin of the verdict retains content, now or after this use.
func (v Verdict) Retains() bool {
	return v.FirstUse != nil && v.FirstUse.Retain || v.Pin != nil && v.Pin.Retain || retains(v.Moves)
}

// Decide resolves a reference to a digest: by the pin in its scope, by the image on the node if the pull behavior
// allows that, or by a request to the registry.
//
// Errors are those of [resolve.Resolver.Resolve], PinnedDigestGone (ErrNotFound) and PinOfNewerRelease
// (ErrNotImplemented).
func (d *Decider) Decide(ctx context.Context, q Request) (Verdict, error) {
	if digested, ok := q.Ref.(reference.Digested); ok {
		return d.decideDigest(ctx, q, digested.Digest())
	}
	if q.err != nil {
		return Verdict{}, q.err
	}
	if q.Pin != nil && !q.Pin.Described() {
		return d.decideClaimed(ctx, q, *q.Pin)
	}
	if q.Pin == nil && q.Running != "" {
		if v, ok, err := d.decideRunning(ctx, q); ok {
			return v, err
		}
	}
	v, err := d.decideTag(ctx, q, q.Pin)
	if v.Registry == nil && d.hasMoved(&q) {
		return d.Decide(ctx, q) // the image and the proof are those of the pin as it was
	}
	if err != nil {
		return v, err
	}
	if v.Registry != nil && !q.DryRun {
		if err := d.noteDrift(ctx, q.Ref, v.Registry.Digest); err != nil {
			return v, err
		}
	}
	return d.applyPin(ctx, q, v)
}

// hasMoved reports whether the pin of a request has been made, moved or removed since the authorities were asked, and updates it.
func (d *Decider) hasMoved(q *Request) bool {
	held, ok := d.now(q.Ref.String(), q.Policy.Scope)
	if ok != (q.Pin != nil) || ok && held.Root.Digest != q.Pin.Root.Digest {
		if q.Pin = nil; ok {
			q.Pin = &held
		}
		q.New = isNew(q.Policy.Rule, pin.Answer{Scope: q.Policy.Scope, Pin: q.Pin, Pod: q.Pod})
		return true
	}
	return false
}

// decideDigest decides for a reference with a digest. It asks the registry only if the digest is not on the node, or
// the credential has no proof.
func (d *Decider) decideDigest(ctx context.Context, q Request, root digest.Digest) (Verdict, error) {
	if local, here := d.onNode(q, nil); here {
		if used, ok := d.mayHave(q, local); ok {
			return q.proved(local.Root, used, "the reference has a digest, which is on the node"), nil
		}
	}
	return d.resolve(ctx, q, q.Ref, "the reference has a digest")
}

// decideTag resolves a tag without applying its pin. If the tag is pinned, only the pinned digest counts as the image
// on the node.
func (d *Decider) decideTag(ctx context.Context, q Request, pinned *pin.Pin) (Verdict, error) {
	local, here := d.onNode(q, pinned)
	behavior := q.Policy.Behavior
	if here && (behavior == policy.PreferCached || behavior == policy.Once && local.Source == imagepin.SourcePull) {
		return d.authorize(ctx, q, local, fmt.Sprintf("the image is on the node, and pull_behavior is %q", behavior))
	}
	v, err := d.resolveTag(ctx, q, pinned, local, here)
	if pinned != nil && errdefs.IsNotFound(err) {
		v, err = d.withoutTag(ctx, q, *pinned, here, err)
	}
	if err == nil {
		return v, nil
	}
	used, mayUse := "", here && behavior == policy.Default && resolve.Unavailable(err)
	if mayUse {
		used, mayUse = d.mayHave(q, local)
	}
	if !mayUse {
		if pinned != nil && !here && resolve.MayBeGone(err) {
			err = WithPin(*pinned, err)
			v.RegistryError = err
		}
		return v, err
	}
	if !q.DryRun {
		log.G(ctx).WithError(err).WithFields(log.Fields{"ref": q.Ref.String(), "digest": local.Root.Digest}).
			Warn("the registry is unavailable, using the image on the node")
	}
	v = q.proved(local.Root, used, "the registry is unavailable, and the image is on the node")
	v.RegistryError = err
	return v, nil
}

// applyPin applies the pin of the scope to a verdict. If there is none, it marks the verdict as the first use.
func (d *Decider) applyPin(ctx context.Context, q Request, v Verdict) (Verdict, error) {
	// The pin can be made, moved or removed during the request to the registry, and a lock applied or removed.
	held, pinned := d.now(q.Ref.String(), q.Policy.Scope)
	if pinned {
		v = d.apply(v, held)
	}
	if pinned && !q.DryRun {
		if err := d.pins.Touch(ctx, held.ID); err != nil {
			return v, err
		}
		_, pinned = d.pins.Get(held.ID) // a pin that has just expired is used, and made again
	}
	if pinned || q.Policy.Scope == "" || q.Policy.Scope == policy.LockScope {
		return v, nil
	}
	if q.New && v.Fallback() {
		v.Pin, v.FirstUse = nil, nil
		v.Why += "; the next start asks again"
		return v, nil
	}
	if held.Scope == policy.LockScope { // the lock was applied and removed meanwhile: its digest is not that of a first use
		v.Pin = nil
		return v, nil
	}
	v.Pin, v.FirstUse = nil, q.firstUse()
	if q.DryRun {
		v.Why += "; a pull would pin it"
	}
	return v, nil
}

// apply changes a verdict to the digest of a pin.
func (d *Decider) apply(v Verdict, held pin.Pin) Verdict {
	if v.Root.Digest != held.Root.Digest {
		v.Why, v.UsedProof = whyPinned(held), ""
	}
	v.Root, v.Pin, v.FirstUse = held.Root, &held, nil
	if v.Proof != "" {
		v.Proof = d.proofs.Of(v.Ref, v.Credential, held.Root.Digest)
	}
	return v
}

// whyPinned returns the reason of a verdict that a pin decides.
func whyPinned(held pin.Pin) string {
	in := fmt.Sprintf("in scope %s since %s", held.Scope, held.MadeAt.UTC().Format(time.RFC3339))
	switch {
	case held.By == pin.ByLock:
		return "locked since " + held.MadeAt.UTC().Format(time.RFC3339)
	case held.Provisional != nil:
		return "pinned " + in + ", provisionally: the Kubernetes API had no usable answer"
	case held.By == pin.ByCluster && held.Claimer != "":
		return "pinned in the cluster by node " + held.Claimer + ", " + in
	case held.By == pin.ByCluster:
		return "pinned in the cluster by another client, " + in
	}
	return "pinned " + in
}

// noteDrift records the digest that the registry returned for a tag on all pins of the tag.
func (d *Decider) noteDrift(ctx context.Context, ref reference.Named, now digest.Digest) error {
	for _, held := range d.pins.Scopes(ref.String()) {
		if err := d.pins.RecordDrift(ctx, held.ID, now); err != nil {
			return err
		}
	}
	d.lookedUp(ref.String(), now)
	return nil
}

// withoutTag decides for a pinned tag that its registry does not have: the registry's answer for the pinned digest counts.
// here reports whether that is on the node. If it is neither there nor in the registry, withoutTag returns
// [imagepin.PinnedDigestGone]: a registry that deletes a manifest deletes its tags too.
func (d *Decider) withoutTag(ctx context.Context, q Request, pinned pin.Pin, here bool, tagErr error) (Verdict, error) {
	v, err := d.authorizeWithoutTag(ctx, q, pinned, tagErr)
	if !errdefs.IsNotFound(err) {
		return v, err
	}
	if !here {
		tagErr = goneError(&pinned, "", tagIsGone, tagErr)
	}
	return Verdict{RegistryError: tagErr}, tagErr
}

// authorizeWithoutTag returns the verdict for the digest of a pin whose tag is gone. The registry must accept the credential
// for the digest even if there is a proof: it may hide a tag from those who have no access.
func (d *Decider) authorizeWithoutTag(ctx context.Context, q Request, pinned pin.Pin, tagErr error) (Verdict, error) {
	v, err := d.authorizeDigest(ctx, q, pinned.Root.Digest, whyPinned(pinned)+", and the registry does not have the tag")
	switch {
	case err != nil:
	case q.DryRun:
		v.RegistryError = tagErr
	default:
		log.G(ctx).WithFields(log.Fields{"ref": q.Ref.String(), "scope": string(pinned.Scope), "digest": pinned.Root.Digest}).
			Warn("the registry does not have the tag, using the pinned digest")
	}
	return v, err
}
