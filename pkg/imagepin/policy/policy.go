package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// Behavior is what a pull does. kubelet's imagePullPolicy decides whether there is a pull. The names are those of the
// ECS agent's image pull behavior.
type Behavior string

const (
	// Default queries the registry, and uses the image on the node if the registry cannot be reached.
	Default Behavior = "default"
	// Always queries the registry, and fails if it cannot be reached.
	Always Behavior = "always"
	// Once queries the registry unless this node has pulled the reference before and still has it.
	Once Behavior = "once"
	// PreferCached queries the registry only if the node does not have the reference.
	PreferCached Behavior = "prefer-cached"
)

// Consistency is the scope for which the first digest of a reference is pinned.
type Consistency string

const (
	// Off does not pin. Each pull uses the registry's current digest.
	Off Consistency = "off"
	// Node pins the first digest for the whole node.
	Node Consistency = "node"
	// Workload pins the first digest for each revision of a workload.
	Workload Consistency = "workload"
)

// Locked is what happens to a reference that the node's lock does not name.
type Locked string

const (
	// LockedOff treats it as if there were no lock.
	LockedOff Locked = "off"
	// LockedWarn logs and counts its use.
	LockedWarn Locked = "warn"
	// LockedStrict refuses to pull and to run it.
	LockedStrict Locked = "strict"
)

// These pod annotations override the rule of an image, if the rule allows it. The consistency can be for single images of the pod,
// see [ParseConsistencies].
const (
	BehaviorAnnotation    = "io.imagepin.pull-behavior"
	ConsistencyAnnotation = "io.imagepin.version-consistency"
)

// Rule configures how matching references are treated.
type Rule struct {
	// Match is a glob over normalized references, see [Glob]. It is empty for the defaults of the node.
	Match string
	// Number is the position of the rule in the configuration, counted from 1. Errors include it.
	Number           int
	Behavior         Behavior
	Consistency      Consistency
	Retain           bool
	AllowPodOverride bool
	Locked           Locked
	NewRevision      NewRevision
	ResolveAt        ResolveAt
	Verify           Verify

	glob *Glob
}

// Policy is the rules of a node. It is immutable.
type Policy struct {
	defaults Rule
	rules    []Rule
	labels   []string
}

// New validates and compiles a policy. workloadLabels are the pod labels that identify a revision, in order of
// preference. Empty fields of a rule are those of the defaults. Errors are of type *[Error].
func New(defaults Rule, rules []Rule, workloadLabels []string) (*Policy, error) {
	defaults.Match = ""
	defaults.Locked = cmp.Or(defaults.Locked, LockedOff)
	defaults.NewRevision = cmp.Or(defaults.NewRevision, FromNode)
	defaults.ResolveAt = cmp.Or(defaults.ResolveAt, ResolveAtHosts)
	defaults.Verify = cmp.Or(defaults.Verify, VerifyPull)
	p := &Policy{defaults: defaults, labels: slices.Clone(workloadLabels)}
	if err := p.check(defaults); err != nil {
		return nil, err
	}
	for i, r := range rules {
		r.Number = cmp.Or(r.Number, i+1)
		r.Behavior = cmp.Or(r.Behavior, defaults.Behavior)
		r.Consistency = cmp.Or(r.Consistency, defaults.Consistency)
		r.Locked = cmp.Or(r.Locked, defaults.Locked)
		r.NewRevision = cmp.Or(r.NewRevision, defaults.NewRevision)
		r.ResolveAt = cmp.Or(r.ResolveAt, defaults.ResolveAt)
		r.Verify = cmp.Or(r.Verify, defaults.Verify)
		if err := p.check(r); err != nil {
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

// check checks the values of a rule.
func (p *Policy) check(r Rule) *Error {
	if err := cmp.Or(
		oneOf("pull_behavior", r.Behavior, Default, Always, Once, PreferCached),
		oneOf("version_consistency", r.Consistency, Off, Node, Workload),
		oneOf("locked", r.Locked, LockedOff, LockedWarn, LockedStrict),
		oneOf("resolve_at", r.ResolveAt, ResolveAtHosts, ResolveAtOrigin),
		oneOf("verify", r.Verify, VerifyPull, VerifyRun),
	); err != nil {
		return err
	}
	if r.Consistency == Workload && len(p.labels) == 0 {
		return &Error{Key: "version_consistency", Value: string(r.Consistency), Err: errors.New("needs a label in workload_labels")}
	}
	return checkNewRevision(r)
}

// oneOf checks that the value of a key is one of all.
func oneOf[T ~string](key string, value T, all ...T) *Error {
	if slices.Contains(all, value) {
		return nil
	}
	var names []string
	for _, name := range all {
		names = append(names, strconv.Quote(string(name)))
	}
	return &Error{Key: key, Value: string(value), Err: errors.New("must be one of " + strings.Join(names, ", "))}
}

// Error is an invalid field of a policy. It is an ErrInvalidArgument.
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

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is ErrInvalidArgument.
func (e *Error) Is(target error) bool { return target == errdefs.ErrInvalidArgument }

// Pod has the fields of the pod of a call that a policy needs. The zero value means that there is no pod.
type Pod struct {
	Namespace   string
	Name        string
	UID         string
	Labels      map[string]string
	Annotations map[string]string
	// Owner is the owner of the pod. It is nil if the pod has none, or the node does not use the Kubernetes API.
	Owner *Owner
	// Provisional reports that the owner is not known because the Kubernetes API did not answer.
	Provisional bool
	// MayBeGone reports that the pod was there when a provisional pin was made for it, and may be deleted since.
	MayBeGone bool
}

// Decision is how a call for a reference is treated.
type Decision struct {
	Rule
	// Scope is the scope for which the digest is pinned. It is empty if it is not pinned.
	Scope Scope
	// Namespace is the Kubernetes namespace of the pod. It is empty without a pod.
	Namespace string
}

// Rule returns the rule for a normalized reference.
func (p *Policy) Rule(ref string) Rule {
	for _, r := range p.rules {
		if r.glob.Match(ref) {
			return r
		}
	}
	return p.defaults
}

// PinsWorkloads reports whether some references are pinned for workloads, unless a pod overrides that.
func (p *Policy) PinsWorkloads() bool {
	return p.defaults.Consistency == Workload || slices.ContainsFunc(p.rules, func(r Rule) bool { return r.Consistency == Workload })
}

// HasStrict reports whether some references are refused if the node's lock does not name them.
func (p *Policy) HasStrict() bool {
	return p.defaults.Locked == LockedStrict || slices.ContainsFunc(p.rules, func(r Rule) bool { return r.Locked == LockedStrict })
}

// MayPinWorkloads reports whether some references are pinned for workloads, or a pod can have them pinned so.
func (p *Policy) MayPinWorkloads() bool {
	return p.PinsWorkloads() || slices.ContainsFunc(p.rules, func(r Rule) bool { return r.AllowPodOverride })
}

// Decide returns how a reference is treated for a pod. A reference with a digest is not pinned, and has no scope.
// Decide ignores annotations that are not allowed or have an unknown value, and returns their names in ignored.
func (p *Policy) Decide(ref string, pod Pod) (d Decision, ignored []string) {
	d.Rule, d.Namespace = p.Rule(ref), pod.Namespace
	if b, ok := pod.Annotations[BehaviorAnnotation]; ok {
		override := d.Rule
		override.Behavior = Behavior(b)
		d.Rule, ignored = p.overridden(d.Rule, override, BehaviorAnnotation, ignored)
	}
	if c, ok := pod.Annotations[ConsistencyAnnotation]; ok {
		d.Rule, ignored = p.overrideConsistency(d.Rule, ref, c, ignored)
	}
	if !strings.Contains(ref, "@") {
		d.Scope = p.scope(d.Consistency, pod)
	}
	return d, ignored
}

// overridden returns by if the rule allows it and it is valid. Otherwise it returns the rule, and adds the annotation to
// ignored. Where by cannot resolve the tags of new revisions, they are not resolved.
func (p *Policy) overridden(rule, by Rule, annotation string, ignored []string) (Rule, []string) {
	if checkNewRevision(by) != nil {
		by.NewRevision = FromNode
	}
	if !rule.AllowPodOverride || p.check(by) != nil {
		return rule, append(ignored, annotation)
	}
	return by, ignored
}

// Scopes returns the scopes in which an operator's pin applies to a call, narrowest first. They do not depend on the
// consistency of the rule. A reference with a digest has none.
func (p *Policy) Scopes(ref string, pod Pod) []Scope {
	if strings.Contains(ref, "@") {
		return nil
	}
	var scopes []Scope
	for _, s := range []Scope{p.scope(Workload, pod), p.LabelScope(pod), NodeScope} {
		if s != "" && !slices.Contains(scopes, s) {
			scopes = append(scopes, s)
		}
	}
	return scopes
}

// LabelScope returns the scope of a pod by its revision label. It is empty for a pod without one.
func (p *Policy) LabelScope(pod Pod) Scope {
	for _, label := range p.labels {
		if value := pod.Labels[label]; value != "" && pod.Namespace != "" {
			return WorkloadScope(pod.Namespace, label, value)
		}
	}
	return ""
}

// scope returns the scope for a pod. A pod with neither an owner nor a revision label, and a call without a pod, have no
// workload scope.
func (p *Policy) scope(c Consistency, pod Pod) Scope {
	switch c {
	case Node:
		return NodeScope
	case Workload:
		if pod.Owner != nil {
			return OwnerScope(pod.Namespace, *pod.Owner)
		}
		return p.LabelScope(pod)
	}
	return ""
}
