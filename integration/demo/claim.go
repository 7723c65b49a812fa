package main

import (
	"fmt"
	"slices"
)

// claim is something that is expected of the node and did not hold, or did.
type claim struct {
	step    int
	handler string // empty: of the node
	what    string
	held    bool
	text    string // what happened instead
}

// claim checks one expectation: what it is about, and what to say if it does not hold.
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
	d.claim(got == want, h, what, "its %s is %s, not %s", what, got, want)
	if got != want {
		return got + mark
	}
	return got
}

// broken are the claims that did not hold. What is wrong with a handler in the same way again is left out.
func (d *demo) broken() []claim {
	var out []claim
	for _, c := range d.claims {
		same := func(o claim) bool { return o.handler == c.handler && o.what == c.what && o.text == c.text }
		if !c.held && !slices.ContainsFunc(out, same) {
			out = append(out, c)
		}
	}
	return out
}

// conclude sums up. It fails if anything did not hold, unless it is stock's turn, of which that is expected.
func (d *demo) conclude() error {
	broken := d.broken()
	if len(broken) == 0 {
		d.say("\nResult after %s: %s did all that was asked; all %d checks of what is said above held.", d.took(), d.name(), len(d.claims))
		return nil
	}
	d.say("\nResult after %s: %s did not do what was asked here:", d.took(), d.name())
	for _, c := range broken {
		subject := "the node: "
		if c.handler != "" {
			subject = "handler " + c.handler + ": "
		}
		d.say("   - step %d, %s%s", c.step, subject, c.text)
	}
	if d.stock {
		return nil
	}
	return fmt.Errorf("%d expectations did not hold", len(broken))
}
