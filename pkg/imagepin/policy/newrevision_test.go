package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/upstream"
)

var resolving = Rule{Behavior: Default, Consistency: Workload, NewRevision: FromRegistry}

// TestNewRevisionNeedsAPinFromTheRegistry refuses rules with which a new revision cannot get its digest from the registry.
func TestNewRevisionNeedsAPinFromTheRegistry(t *testing.T) {
	for _, tc := range []struct {
		defaults Rule
		rules    []Rule
		want     string // empty for none
	}{
		{defaults: resolving},
		{defaults: Rule{Behavior: Always, Consistency: Workload, NewRevision: FromRegistry}},
		{defaults: Rule{Behavior: Default, Consistency: Off}, rules: []Rule{{Match: "docker.io/**", Consistency: Workload, NewRevision: FromRegistry}}},
		{defaults: resolving, rules: []Rule{{Match: "docker.io/**", Behavior: Once, NewRevision: FromNode}}},
		{defaults: Rule{Behavior: Default, Consistency: Workload, NewRevision: "latest"}, want: `new_revision "latest": must be one of "node", "resolve"`},
		{defaults: Rule{Behavior: Default, Consistency: Off, NewRevision: FromRegistry}, want: `new_revision "resolve": needs version_consistency "workload", not "off"`},
		{defaults: Rule{Behavior: Default, Consistency: Node, NewRevision: FromRegistry}, want: `not "node"`},
		{defaults: Rule{Behavior: Once, Consistency: Workload, NewRevision: FromRegistry}, want: `needs pull_behavior "default" or "always", not "once"`},
		{defaults: resolving, rules: []Rule{{Match: "docker.io/**", Behavior: PreferCached}}, want: `rules[1].new_revision "resolve": needs pull_behavior`},
		{defaults: resolving, rules: []Rule{{Match: "docker.io/**", Consistency: Off}}, want: `rules[1].new_revision "resolve": needs version_consistency`},
	} {
		_, err := New(tc.defaults, tc.rules, []string{"pod-template-hash"})
		if tc.want == "" && err != nil || tc.want != "" && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%+v, %+v: got %v, want %q", tc.defaults, tc.rules, err, tc.want)
		}
	}
}

// TestOverrideOfNewRevision lets a pod choose a behavior or a consistency that does not resolve the tags of new revisions.
func TestOverrideOfNewRevision(t *testing.T) {
	open := resolving
	open.AllowPodOverride = true
	p, err := New(open, nil, []string{"pod-template-hash"})
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]NewRevision{"once": FromNode, "always": FromRegistry, "never": FromRegistry} {
		d, ignored := p.Decide("docker.io/library/app:1", Pod{Annotations: map[string]string{BehaviorAnnotation: value}})
		if d.NewRevision != want || slices.Contains(ignored, BehaviorAnnotation) != (value == "never") {
			t.Errorf("%s: got %+v, ignored %q, want %s", value, d, ignored, want)
		}
	}
	if d, _ := p.Decide("docker.io/library/app:1", Pod{Annotations: map[string]string{ConsistencyAnnotation: "off"}}); d.NewRevision != FromNode || d.Consistency != Off {
		t.Errorf("off: got %+v", d)
	}
}

func TestStatic(t *testing.T) {
	for source, want := range map[string]bool{"": false, upstream.SourceAPI: false, "file": true, "http": true} {
		p := Pod{}
		if source != "" {
			p.Annotations = map[string]string{upstream.SourceAnnotation: source}
		}
		if p.Static() != want {
			t.Errorf("%q: got %t, want %t", source, p.Static(), want)
		}
	}
}
