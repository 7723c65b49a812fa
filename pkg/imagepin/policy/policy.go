package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Behavior is what a pull does when it is called. Whether it is called is up to
// kubelet's imagePullPolicy. The names are those of the ECS agent's image pull
// behavior.
type Behavior string

const (
	// Default asks the registry, and uses what is on the node where that cannot
	// be reached.
	Default Behavior = "default"
	// Always asks the registry, and fails where it cannot be reached.
	Always Behavior = "always"
	// Once asks the registry unless this node has pulled the reference before
	// and still has it.
	Once Behavior = "once"
	// PreferCached asks the registry only where the node does not have the
	// reference.
	PreferCached Behavior = "prefer-cached"
)

// Consistency is for whom the first digest that a reference resolves to
// sticks.
type Consistency string

const (
	// Off: a reference means what its registry says at each pull.
	Off Consistency = "off"
	// Node: the first digest sticks for the whole node.
	Node Consistency = "node"
	// Workload: it sticks for each revision of a workload.
	Workload Consistency = "workload"
)

// The annotations of a pod that override its rule, where that allows it.
const (
	BehaviorAnnotation    = "io.imagepin.pull-behavior"
	ConsistencyAnnotation = "io.imagepin.version-consistency"
)

// Rule is how matching references are treated.
type Rule struct {
	// Match is a glob over normalized references, see [Glob]. It is empty for
	// the defaults of the node.
	Match string
	// Number is which rule of the configuration it is, counted from 1, for
	// errors to say.
	Number           int
	Behavior         Behavior
	Consistency      Consistency
	Retain           bool
	AllowPodOverride bool

	glob *Glob
}

// Policy is the rules of a node. It does not change after [New].
type Policy struct {
	defaults Rule
	rules    []Rule
	labels   []string
}

// New checks and compiles a policy. workloadLabels are the pod labels that name
// a revision, in order of preference. A field of a rule that is empty is that
// of the defaults. Errors are *[Error].
func New(defaults Rule, rules []Rule, workloadLabels []string) (*Policy, error) {
	defaults.Match = ""
	if err := defaults.check(); err != nil {
		return nil, err
	}
	p := &Policy{defaults: defaults, labels: slices.Clone(workloadLabels)}
	if defaults.Consistency == Workload && len(workloadLabels) == 0 {
		return nil, &Error{Key: "workload_labels", Err: fmt.Errorf("must name a label where version_consistency is %q", Workload)}
	}
	for i, r := range rules {
		if r.Number == 0 {
			r.Number = i + 1
		}
		if r.Behavior == "" {
			r.Behavior = defaults.Behavior
		}
		if r.Consistency == "" {
			r.Consistency = defaults.Consistency
		}
		if err := r.check(); err != nil {
			err.Rule = r.Number
			return nil, err
		}
		glob, err := ParseGlob(r.Match)
		if err != nil {
			return nil, &Error{Rule: r.Number, Key: "match", Value: r.Match, Err: err}
		}
		r.glob = glob
		p.rules = append(p.rules, r)
	}
	return p, nil
}

func (r Rule) check() *Error {
	if !slices.Contains([]Behavior{Default, Always, Once, PreferCached}, r.Behavior) {
		return &Error{Key: "pull_behavior", Value: string(r.Behavior),
			Err: fmt.Errorf("must be one of %q, %q, %q, %q", Default, Always, Once, PreferCached)}
	}
	if !slices.Contains([]Consistency{Off, Node, Workload}, r.Consistency) {
		return &Error{Key: "version_consistency", Value: string(r.Consistency),
			Err: fmt.Errorf("must be one of %q, %q, %q", Off, Node, Workload)}
	}
	return nil
}

// Error says which key of a policy is wrong. It is an ErrInvalidArgument.
type Error struct {
	Rule  int // counted from 1; 0 for the defaults
	Key   string
	Value string
	Err   error
}

func (e *Error) Error() string {
	where := e.Key
	if e.Rule > 0 {
		where = fmt.Sprintf("rules[%d].%s", e.Rule, e.Key)
	}
	return fmt.Sprintf("%s %q: %v", where, e.Value, e.Err)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is tells that an Error is an ErrInvalidArgument.
func (e *Error) Is(target error) bool { return target == errdefs.ErrInvalidArgument }

// Pod is what a policy needs to know of the pod that a call is for. The zero
// value is no pod.
type Pod struct {
	Namespace   string
	Labels      map[string]string
	Annotations map[string]string
}

// Decision is how one call about one reference is treated.
type Decision struct {
	Rule
	// Scope is for whom the digest sticks; it is empty where none does.
	Scope Scope
	// Namespace is the Kubernetes namespace of the pod; empty where there is
	// none.
	Namespace string
}

// Rule gives the rule for a normalized reference.
func (p *Policy) Rule(ref string) Rule {
	for _, r := range p.rules {
		if r.glob.Match(ref) {
			return r
		}
	}
	return p.defaults
}

// Decide gives the treatment of a reference for a pod. A reference with a
// digest says itself what it means, and has no scope. An annotation that is not
// allowed, or not a known word, changes nothing; ignored says which.
func (p *Policy) Decide(ref string, pod Pod) (d Decision, ignored []string) {
	d.Rule, d.Namespace = p.Rule(ref), pod.Namespace
	if b, ok := pod.Annotations[BehaviorAnnotation]; ok {
		override := d.Rule
		override.Behavior = Behavior(b)
		d.Rule, ignored = d.overridden(override, BehaviorAnnotation, ignored)
	}
	if c, ok := pod.Annotations[ConsistencyAnnotation]; ok {
		override := d.Rule
		override.Consistency = Consistency(c)
		d.Rule, ignored = d.overridden(override, ConsistencyAnnotation, ignored)
	}
	if !strings.Contains(ref, "@") {
		d.Scope = p.scope(d.Consistency, pod)
	}
	return d, ignored
}

func (d Decision) overridden(by Rule, annotation string, ignored []string) (Rule, []string) {
	if !d.AllowPodOverride || by.check() != nil {
		return d.Rule, append(ignored, annotation)
	}
	return by, ignored
}

// Scopes are those that a pin set by an operator may have for a call, the
// narrowest first, whatever the rule says of consistency.
func (p *Policy) Scopes(ref string, pod Pod) []Scope {
	if strings.Contains(ref, "@") {
		return nil
	}
	if s := p.scope(Workload, pod); s != "" {
		return []Scope{s, NodeScope}
	}
	return []Scope{NodeScope}
}

// scope derives for whom a digest sticks. A pod that names no revision, and a
// call that is for no pod, have no workload.
func (p *Policy) scope(c Consistency, pod Pod) Scope {
	switch c {
	case Node:
		return NodeScope
	case Workload:
		for _, label := range p.labels {
			if value := pod.Labels[label]; value != "" && pod.Namespace != "" {
				return WorkloadScope(pod.Namespace, label, value)
			}
		}
	}
	return ""
}
