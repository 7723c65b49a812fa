package decide

import "github.com/imagepin/imagepin/pkg/imagepin/policy"

// Rule returns the policy rule for a normalized reference.
func (d *Decider) Rule(ref string) policy.Rule { return d.policy().Rule(ref) }

// IgnoredAnnotations returns the annotations of a pod that the rule of a normalized reference does not allow, or that are not valid.
func (d *Decider) IgnoredAnnotations(ref string, pod policy.Pod) []string {
	_, ignored := d.policy().Decide(ref, pod)
	return ignored
}

// Scopes returns the scopes that pins of a pod can have, narrowest first.
func (d *Decider) Scopes(pod policy.Pod) []policy.Scope { return d.policy().Scopes("", pod) }

// ScopeOf returns the scope of the pin that decides a normalized reference for a pod, or in which its first use pins it. It is empty if
// the policy does not pin the reference.
func (d *Decider) ScopeOf(ref string, pod policy.Pod) policy.Scope {
	return d.look(d.question(ref, pod)).Scope
}
