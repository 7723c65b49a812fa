package pin

import (
	"context"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Authority says which digest a reference means. There are three: the node's lock ([Lock]), the cluster (package cluster) and the
// node's own records ([Node]). Package decide asks them in this order, and none asks another. Package pintest tests what all three have
// in common.
type Authority interface {
	// Look answers from memory. It sends no request and writes nothing. ok is false if the authority has no say about the reference
	// and the pod.
	Look(q Question) (_ Answer, ok bool)
	// Ask may send a request to the source of the authority, for example for the owner of the pod. It writes only if q.Record is set.
	Ask(ctx context.Context, q Question) (_ Answer, ok bool, _ error)
	// Claim pins root for the first use of a reference, and returns the pin that applies: another use may have been first. ok is false
	// if the pin is not one of the authority, see [FirstUse.InCluster].
	Claim(ctx context.Context, use FirstUse, root ocispec.Descriptor) (_ Pin, ok bool, _ error)
}

// Question asks which digest a reference means for a pod.
type Question struct {
	Ref string // normalized
	Pod policy.Pod
	// Policy is the rule for the reference and the pod.
	Policy policy.Decision
	// Record reports that the authority records what it learns from its source, because a pull or a container follows.
	Record bool
}

// Answer is what an authority says. Without Pin and Err, the reference is not pinned yet.
type Answer struct {
	// Scope is the scope of the pin, or in which the first use pins the reference. It is empty if the policy does not pin it.
	Scope policy.Scope
	// Pin is the pin, or nil. See [Pin.Described].
	Pin *Pin
	// Err is why the pin cannot be used, or nil: [imagepin.PinOfNewerRelease]. With Pin, a status may still show that.
	Err error
	// Pod is the pod of the question with its owner. It is provisional if the Kubernetes API did not answer, and the node has no pin
	// for it.
	Pod policy.Pod
}

// Decides reports whether the answer precedes those of the authorities that are asked later.
func (a Answer) Decides() bool { return a.Pin != nil || a.Err != nil }

// FirstUse is a pin that the first use of a reference makes.
type FirstUse struct {
	ID ID
	// Namespace is the Kubernetes namespace of the pod that the pin is made for. It is empty if there is no pod.
	Namespace string
	Retain    bool
	// Pod is the pod that the pin is claimed for in the cluster. It has neither an owner nor is it provisional if the pin is
	// the node's own.
	Pod policy.Pod
	// Registry is what the registry returned for the tag before another node was found to have pinned it, or "".
	Registry digest.Digest
}

// InCluster reports whether the pin is one of the cluster.
func (u FirstUse) InCluster() bool { return u.Pod.Owner != nil || u.Pod.Provisional }

// None is an authority that has no say.
type None struct{}

// Look implements [Authority].
func (None) Look(Question) (Answer, bool) { return Answer{}, false }

// Ask implements [Authority].
func (None) Ask(context.Context, Question) (Answer, bool, error) { return Answer{}, false, nil }

// Claim implements [Authority].
func (None) Claim(context.Context, FirstUse, ocispec.Descriptor) (Pin, bool, error) {
	return Pin{}, false, nil
}

// Lock is the authority of the node's lock. Its pins are in memory, and no first use makes one.
type Lock struct {
	None
	// Pins has the pins of the lock. [Store] implements it.
	Pins interface {
		OfLock(ref string) (Pin, bool)
	}
}

// Look implements [Authority].
func (l Lock) Look(q Question) (Answer, bool) {
	held, ok := l.Pins.OfLock(q.Ref)
	if !ok {
		return Answer{}, false
	}
	return Answer{Scope: policy.LockScope, Pin: &held, Pod: q.Pod}, true
}

// Ask implements [Authority].
func (l Lock) Ask(_ context.Context, q Question) (Answer, bool, error) {
	answer, ok := l.Look(q)
	return answer, ok, nil
}

// Node is the authority of the node's own records. It answers every question.
type Node struct {
	// Pins has the pins of the node. [Store] implements it.
	Pins interface {
		Get(id ID) (Pin, bool)
		CheckReadable(id ID) error
		MakeForNamespace(ctx context.Context, namespace string, id ID, root ocispec.Descriptor, by By, retain bool) (Pin, error)
	}
	// Policy returns the current rules.
	Policy func() *policy.Policy
}

// Look implements [Authority]. The pin in the pod's own scope decides, unless that is a scope of the cluster. A pin that an operator
// has set for the pod decides even if no rule pins the reference.
func (n Node) Look(q Question) (Answer, bool) {
	answer := Answer{Scope: q.Policy.Scope, Pod: q.Pod}
	if _, inCluster := answer.Scope.Owner(); !inCluster {
		if held, ok := n.Pins.Get(ID{Scope: answer.Scope, Ref: q.Ref}); ok {
			answer.Pin = &held
			return answer, true
		}
	}
	scopes := n.Policy().Scopes(q.Ref, q.Pod)
	for _, scope := range scopes {
		if err := n.Pins.CheckReadable(ID{Scope: scope, Ref: q.Ref}); err != nil {
			answer.Scope, answer.Err = scope, err // its digest is unknown, so it must not be skipped
			return answer, true
		}
	}
	for _, scope := range scopes {
		if held, ok := n.Pins.Get(ID{Scope: scope, Ref: q.Ref}); ok && held.By == ByOperator {
			answer.Scope, answer.Pin = scope, &held
			return answer, true
		}
	}
	return answer, true
}

// Ask implements [Authority].
func (n Node) Ask(_ context.Context, q Question) (Answer, bool, error) {
	answer, ok := n.Look(q)
	return answer, ok, nil
}

// Claim implements [Authority]. It fails as [Store.MakeForNamespace] does.
func (n Node) Claim(ctx context.Context, use FirstUse, root ocispec.Descriptor) (Pin, bool, error) {
	if use.InCluster() {
		return Pin{}, false, nil
	}
	held, err := n.Pins.MakeForNamespace(ctx, use.Namespace, use.ID, root, ByUse, use.Retain)
	return held, err == nil, err
}
