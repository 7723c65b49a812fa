package policy

import (
	"errors"
	"testing"
)

func TestVerify(t *testing.T) {
	p := func(defaults Verify, rules ...Verify) *Policy {
		t.Helper()
		var all []Rule
		for _, v := range rules {
			all = append(all, Rule{Match: "registry.example/**", Verify: v})
		}
		made, err := New(Rule{Behavior: Default, Consistency: Off, Verify: defaults}, all, nil)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	for name, c := range map[string]struct {
		policy *Policy
		want   Verify // of a reference that the first rule matches
		runs   bool
	}{
		"not set":                   {p(""), VerifyPull, false},
		"defaults":                  {p(VerifyRun), VerifyRun, true},
		"inherited":                 {p(VerifyRun, ""), VerifyRun, true},
		"an exception":              {p(VerifyRun, VerifyPull), VerifyPull, true},
		"only a rule":               {p("", VerifyRun), VerifyRun, true},
		"a rule that never applies": {p("", VerifyPull, VerifyRun), VerifyPull, true},
	} {
		if got := c.policy.Rule("registry.example/app:1").Verify; got != c.want || c.policy.VerifiesRuns() != c.runs {
			t.Errorf("%s: got %q, verifies runs: %v", name, got, c.policy.VerifiesRuns())
		}
	}
	var known *Error
	_, err := New(Rule{Behavior: Default, Consistency: Off}, []Rule{{Match: "**", Verify: "always"}}, nil)
	if !errors.As(err, &known) || known.Key != "verify" || known.Rule != 1 {
		t.Errorf("an unknown value: %v", err)
	}
}
