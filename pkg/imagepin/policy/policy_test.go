package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func mustNew(t *testing.T, rules ...Rule) *Policy {
	t.Helper()
	p, err := New(Rule{Behavior: Default, Consistency: Off}, rules, []string{"pod-template-hash", "controller-revision-hash"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestFirstRuleWinsAndInherits(t *testing.T) {
	p := mustNew(t,
		Rule{Match: "docker.io/library/*", Behavior: Always},
		Rule{Match: "docker.io/**", Consistency: Node, Retain: true, Locked: LockedStrict, Verify: VerifyRun},
	)
	for ref, want := range map[string]Rule{
		"docker.io/library/busybox:1": {Match: "docker.io/library/*", Behavior: Always, Consistency: Off, Locked: LockedOff, Verify: VerifyPull, NewRevision: FromNode},
		"docker.io/team/sub/app:1":    {Match: "docker.io/**", Behavior: Default, Consistency: Node, Retain: true, Locked: LockedStrict, Verify: VerifyRun, NewRevision: FromNode},
		"quay.io/team/app:1":          {Behavior: Default, Consistency: Off, Locked: LockedOff, Verify: VerifyPull, NewRevision: FromNode},
	} {
		got := p.Rule(ref)
		got.glob, got.Number, got.ResolveAt = nil, 0, ""
		if got != want {
			t.Errorf("%s: got %+v, want %+v", ref, got, want)
		}
	}
}

func TestScopes(t *testing.T) {
	p := mustNew(t, Rule{Match: "node.io/**", Consistency: Node}, Rule{Match: "work.io/**", Consistency: Workload})
	pod := Pod{Namespace: "shop", Labels: map[string]string{"controller-revision-hash": "b", "pod-template-hash": "a"}}
	for _, tc := range []struct {
		ref  string
		pod  Pod
		want Scope
	}{
		{"node.io/app:1", pod, NodeScope},
		{"node.io/app:1", Pod{}, NodeScope},
		{"node.io/app@sha256:" + strings.Repeat("0", 64), pod, ""},
		{"work.io/app:1", pod, "workload/shop/pod-template-hash=a"},
		{"work.io/app:1", Pod{Namespace: "shop", Labels: map[string]string{"controller-revision-hash": "b"}}, "workload/shop/controller-revision-hash=b"},
		{"work.io/app:1", Pod{Namespace: "shop"}, ""},
		{"work.io/app:1", Pod{Labels: pod.Labels}, ""},
		{"quay.io/app:1", pod, ""},
	} {
		d, _ := p.Decide(tc.ref, tc.pod)
		if d.Scope != tc.want {
			t.Errorf("%s for %+v: got scope %q, want %q", tc.ref, tc.pod, d.Scope, tc.want)
		}
	}
}

func TestOverridesOnlyWhereAllowed(t *testing.T) {
	p := mustNew(t, Rule{Match: "open.io/**", AllowPodOverride: true})
	pod := Pod{Annotations: map[string]string{BehaviorAnnotation: "once", ConsistencyAnnotation: "node"}}

	if d, ignored := p.Decide("open.io/app:1", pod); d.Behavior != Once || d.Scope != NodeScope || len(ignored) != 0 {
		t.Errorf("allowed: got %+v, ignored %q", d, ignored)
	}
	if d, ignored := p.Decide("shut.io/app:1", pod); d.Behavior != Default || d.Scope != "" || len(ignored) != 2 {
		t.Errorf("not allowed: got %+v, ignored %q", d, ignored)
	}
	pod.Annotations[BehaviorAnnotation] = "never"
	if d, ignored := p.Decide("open.io/app:1", pod); d.Behavior != Default || d.Consistency != Node || len(ignored) != 1 {
		t.Errorf("unknown behavior: got %+v, ignored %q", d, ignored)
	}
}

// Without labels that identify a revision, an annotation cannot request a pin for each revision.
func TestOverrideNeedsWorkloadLabels(t *testing.T) {
	p, err := New(Rule{Behavior: Default, Consistency: Node, AllowPodOverride: true}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pod := Pod{Namespace: "shop", Annotations: map[string]string{ConsistencyAnnotation: "workload"}}
	if d, ignored := p.Decide("docker.io/library/app:1", pod); d.Scope != NodeScope || !slices.Equal(ignored, []string{ConsistencyAnnotation}) {
		t.Errorf("got %+v, ignored %q, want the scope of the section", d, ignored)
	}
}

func TestNewErrorNamesField(t *testing.T) {
	ok := Rule{Behavior: Default, Consistency: Off}
	for _, tc := range []struct {
		defaults Rule
		rules    []Rule
		labels   []string
		want     string
	}{
		{Rule{Behavior: "sometimes", Consistency: Off}, nil, nil, `pull_behavior "sometimes"`},
		{Rule{Behavior: Default, Consistency: "cluster"}, nil, nil, `version_consistency "cluster"`},
		{Rule{Behavior: Default, Consistency: Workload}, nil, nil, `version_consistency "workload": needs a label in workload_labels`},
		{ok, []Rule{{Match: "docker.io/**", Consistency: Workload}}, nil, `rules[1].version_consistency "workload": needs a label in workload_labels`},
		{ok, []Rule{{Match: "docker.io/**"}, {Match: "busybox"}}, nil, `rules[2].match "busybox"`},
		{ok, []Rule{{Match: "docker.io/**", Behavior: "x"}}, nil, `rules[1].pull_behavior "x"`},
	} {
		_, err := New(tc.defaults, tc.rules, tc.labels)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got %v, want an invalid argument error with %s", err, tc.want)
		}
	}
}

func TestGlob(t *testing.T) {
	for pattern, refs := range map[string]map[string]bool{
		"docker.io/library/*":    {"docker.io/library/a:1": true, "docker.io/library/a/b:1": false},
		"docker.io/library/a:v?": {"docker.io/library/a:v1": true, "docker.io/library/a:v12": false, "docker.io/library/aXv1": false},
		"*.example.com:5000/**":  {"r.example.com:5000/a/b:1": true, "r.example.com/a:1": false},
		"**/app:*":               {"r.io/x/y/app:1": true, "r.io/x/apps:1": false},
		"**":                     {"r.io/x:1": true},
		"r.io/x@sha256:*":        {"r.io/x@sha256:00": true, "r.io/x:1": false},
	} {
		g, err := ParseGlob(pattern)
		if err != nil {
			t.Errorf("%s: %v", pattern, err)
			continue
		}
		for ref, want := range refs {
			if g.Match(ref) != want {
				t.Errorf("%s matches %s: got %t, want %t", pattern, ref, !want, want)
			}
		}
	}
	for _, pattern := range []string{"", "busybox", "busybox:*", "library/busybox", "docker.io/", "docker.io/Library/*", "docker.io/a b", "docker.io/library/busybox",
		"**/" + strings.Repeat("*a", 16<<20) + ":*"} { // to compile the last one would take minutes
		if _, err := ParseGlob(pattern); err == nil {
			t.Errorf("%q: got no error for a pattern that never matches", pattern)
		}
	}
}

func TestParseScope(t *testing.T) {
	for text, want := range map[string]Scope{
		"": NodeScope, "node": NodeScope,
		"workload/shop/pod-template-hash=a": WorkloadScope("shop", "pod-template-hash", "a"),
	} {
		if got, err := ParseScope(text); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"cluster", "workload", "workload/", "workload/shop", "workload/shop/a", "workload//a=b", "workload/shop/=b", "workload/shop/a="} {
		if _, err := ParseScope(text); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: got %v, want an InvalidArgument error", text, err)
		}
	}
	if ns := WorkloadScope("shop", "a", "b").Namespace(); ns != "shop" {
		t.Errorf("got namespace %q, want shop", ns)
	}
}
