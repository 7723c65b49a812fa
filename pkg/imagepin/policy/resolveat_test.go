package policy

import (
	"errors"
	"testing"
)

// TestResolveAt checks that a rule inherits resolve_at, and that another value is refused.
func TestResolveAt(t *testing.T) {
	for name, c := range map[string]struct{ defaults, rule, want ResolveAt }{
		"not set":      {want: ResolveAtHosts},
		"inherited":    {defaults: ResolveAtOrigin, want: ResolveAtOrigin},
		"an exception": {defaults: ResolveAtOrigin, rule: ResolveAtHosts, want: ResolveAtHosts},
		"only a rule":  {rule: ResolveAtOrigin, want: ResolveAtOrigin},
	} {
		p, err := New(Rule{Behavior: Default, Consistency: Off, ResolveAt: c.defaults}, []Rule{{Match: "registry.example/**", ResolveAt: c.rule}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Rule("registry.example/app:1").ResolveAt; got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	var known *Error
	if _, err := New(Rule{Behavior: Default, Consistency: Off}, []Rule{{Match: "**", ResolveAt: "mirror"}}, nil); !errors.As(err, &known) || known.Key != "resolve_at" || known.Rule != 1 {
		t.Errorf("an unknown value: %v", err)
	}
}
