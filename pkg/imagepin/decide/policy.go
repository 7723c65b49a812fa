package decide

import (
	"context"
	"strings"

	"github.com/containerd/log"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Rule returns the policy rule for a normalized reference.
func (d *Decider) Rule(ref string) policy.Rule { return d.policy().Rule(ref) }

// Scopes returns the scopes that pins of a pod can have, narrowest first.
func (d *Decider) Scopes(pod policy.Pod) []policy.Scope { return d.policy().Scopes("", pod) }

// EffectivePolicy returns the policy for a reference and a pod, including pins that an operator has set. Such a pin
// applies even if no rule pins the reference, until the pod's own scope has a pin. The node's lock takes precedence over all
// other pins. ignored lists the pod annotations that are not allowed or not valid.
func (d *Decider) EffectivePolicy(ref string, pod policy.Pod) (effective policy.Decision, ignored []string) {
	return d.effectivePolicy(ref, pod, false)
}

// effectivePolicy is [Decider.EffectivePolicy]. dropped reports that the pin in the pod's own scope does not count any more.
func (d *Decider) effectivePolicy(ref string, pod policy.Pod, dropped bool) (effective policy.Decision, ignored []string) {
	effective, ignored = d.policy().Decide(ref, pod)
	if _, locked := d.Locked(ref); locked {
		effective.Scope = policy.LockScope
		return effective, ignored
	}
	if _, pinned := d.pins.Get(pin.ID{Scope: effective.Scope, Ref: ref}); pinned && !dropped {
		return effective, ignored
	}
	if effective.Consistency == policy.Workload {
		if _, pinned := d.cluster().Known(pod, ref); pinned {
			return effective, ignored
		}
	}
	scopes := d.policy().Scopes(ref, pod)
	for _, scope := range scopes {
		if d.pins.CheckReadable(pin.ID{Scope: scope, Ref: ref}) != nil {
			effective.Scope = scope // its digest is unknown, so it must not be skipped
			return effective, ignored
		}
	}
	for _, scope := range scopes {
		if held, ok := d.pins.Get(pin.ID{Scope: scope, Ref: ref}); ok && held.By == pin.ByOperator {
			effective.Scope = scope
			break
		}
	}
	return effective, ignored
}

// loggedPolicy is [Decider.EffectivePolicy]. It logs the ignored annotations.
func (d *Decider) loggedPolicy(ctx context.Context, ref reference.Named, pod policy.Pod) policy.Decision {
	effective, ignored := d.EffectivePolicy(ref.String(), pod)
	if len(ignored) > 0 {
		log.G(ctx).WithField("ref", ref.String()).WithField("namespace", pod.Namespace).
			Warnf("ignoring pod annotations that are not allowed or not valid: %s", strings.Join(ignored, ", "))
	}
	return effective
}
