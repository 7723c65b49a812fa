package main

import (
	"fmt"
	"slices"
)

// claim is the result of one check.
type claim struct {
	step    int
	handler string // empty for the node
	what    string
	held    bool
	text    string // the failure
}

// claim records the result of a check. The format and its arguments describe a failure.
func (d *demo) claim(held bool, h *handler, what, format string, args ...any) {
	c := claim{step: d.step, what: what, held: held}
	if h != nil {
		c.handler = h.name
	}
	if !held {
		c.text = fmt.Sprintf(format, args...)
	}
	d.claims = append(d.claims, c)
}

// cell checks one cell of a table and returns its text.
func (d *demo) cell(h *handler, what, got, want string) string {
	if got == "" {
		got = "-"
	}
	d.claim(got == want, h, what, "%s is %s, want %s", what, got, want)
	if got != want {
		return got + mark
	}
	return got
}

// failures returns the claims that did not hold, without repetitions of a failure of the same handler.
func (d *demo) failures() []claim {
	var out []claim
	for _, c := range d.claims {
		same := func(o claim) bool { return o.handler == c.handler && o.what == c.what && o.text == c.text }
		if !c.held && !slices.ContainsFunc(out, same) {
			out = append(out, c)
		}
	}
	return out
}

// conclude prints the result. It returns an error if a check failed, except with stock, where failures are expected.
func (d *demo) conclude() error {
	failures := d.failures()
	if len(failures) == 0 {
		d.say("\nResult after %s: %s passed all %d checks.", d.took(), d.name(), len(d.claims))
		return nil
	}
	d.say("\nResult after %s: %s failed these checks:", d.took(), d.name())
	for _, c := range failures {
		subject := "the node: "
		if c.handler != "" {
			subject = "handler " + c.handler + ": "
		}
		d.say("   - step %d, %s%s", c.step, subject, c.text)
	}
	if d.stock {
		return nil
	}
	return fmt.Errorf("%d checks failed", len(failures))
}
