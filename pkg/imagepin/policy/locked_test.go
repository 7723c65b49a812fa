package policy

import (
	"errors"
	"testing"
)

func TestLocked(t *testing.T) {
	p := func(defaults Locked, rules ...Locked) *Policy {
		t.Helper()
		var all []Rule
		for _, l := range rules {
			all = append(all, Rule{Match: "registry.example/**", Locked: l})
		}
		made, err := New(Rule{Behavior: Default, Consistency: Off, Locked: defaults}, all, nil)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	for name, c := range map[string]struct {
		policy *Policy
		want   Locked // of a reference that the first rule matches
		strict bool
	}{
		"not set":                   {p(""), LockedOff, false},
		"defaults":                  {p(LockedStrict), LockedStrict, true},
		"inherited":                 {p(LockedWarn, ""), LockedWarn, false},
		"an exception":              {p(LockedStrict, LockedOff), LockedOff, true},
		"only a rule":               {p("", LockedStrict), LockedStrict, true},
		"a rule that never applies": {p("", LockedWarn, LockedStrict), LockedWarn, true},
	} {
		if got := c.policy.Rule("registry.example/app:1").Locked; got != c.want || c.policy.HasStrict() != c.strict {
			t.Errorf("%s: got %q, strict %v", name, got, c.policy.HasStrict())
		}
	}
	for _, rules := range [][]Rule{{{Match: "**", Locked: "yes"}}, nil} {
		defaults := Rule{Behavior: Default, Consistency: Off}
		if rules == nil {
			defaults.Locked = "yes"
		}
		var known *Error
		if _, err := New(defaults, rules, nil); !errors.As(err, &known) || known.Key != "locked" || known.Rule != len(rules) {
			t.Errorf("an unknown value: %v", err)
		}
	}
}

// TestLockScope checks that pods cannot get into the scope of the lock by the rules.
func TestLockScope(t *testing.T) {
	if got, err := ParseScope("lock"); err != nil || got != LockScope || got.Namespace() != "" {
		t.Errorf("got %q, %v", got, err)
	}
	p, err := New(Rule{Behavior: Default, Consistency: Workload}, nil, []string{"revision"})
	if err != nil {
		t.Fatal(err)
	}
	for _, scope := range p.Scopes("registry.example/app:1", Pod{Namespace: "lock", Labels: map[string]string{"revision": "lock"}}) {
		if scope == LockScope {
			t.Error("a pod has the scope of the lock")
		}
	}
}
