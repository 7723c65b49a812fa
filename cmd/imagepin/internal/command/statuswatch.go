package command

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const (
	// statusInterval is the time between two states of a watch.
	statusInterval = time.Second
	// shownChanges is how many of the last changes a watch shows on a terminal.
	shownChanges = 5
	// clearScreen moves the cursor to the top left and clears the terminal, as clear(1) does.
	clearScreen = "\x1b[H\x1b[2J"
)

// watchStatus shows the state of the node until the user interrupts it. A server that stops answering ends it.
func (a *app) watchStatus(ctx context.Context, cmd *cli.Command, c api.ControlClient) error {
	w := &statusWatch{now: a.now}
	show := func(changes []string) error {
		_, err := fmt.Fprint(a.Out, strings.Join(append(changes, ""), "\n"))
		return err
	}
	if !printsText(cmd) {
		show = func(changes []string) error {
			if len(changes) == 0 {
				return nil
			}
			return a.print(cmd, w.last, nil)
		}
	} else if _, ok := terminal(a.Out); ok {
		show = func(changes []string) error { return w.draw(a, changes) }
	}
	return every(ctx, min(a.interval, statusInterval), func() error {
		st, err := c.Status(ctx, &api.StatusRequest{})
		if err != nil {
			return err
		}
		return show(w.update(st))
	})
}

// statusWatch compares the states of a watch.
type statusWatch struct {
	now     func() time.Time
	last    *api.StatusResponse
	at      time.Time // of last
	changes []string  // the last changes, for a terminal
}

// update takes the next state, and returns what has changed, one line each.
func (w *statusWatch) update(st *api.StatusResponse) []string {
	changes := mapped(statusChanges(w.last, st), func(line string) string { return stamp(st.GetAt()) + " " + printableLines(line) })
	w.last, w.at = st, w.now()
	return changes
}

// draw draws the state and the last changes on a terminal.
func (w *statusWatch) draw(a *app, changes []string) error {
	w.changes = append(w.changes, changes...)
	w.changes = w.changes[max(0, len(w.changes)-shownChanges):]
	text := statusText(w.last, w.at)
	fmt.Fprintln(text, "\nChanges:")
	for _, c := range w.changes {
		fmt.Fprintln(text, " ", c)
	}
	_, err := fmt.Fprint(a.Out, clearScreen, text)
	return err
}

// statusChanges describes the changes between two states. before is nil for the first state: then these are the numbers,
// the pulls and the problems.
func statusChanges(before, after *api.StatusResponse) []string {
	var changes []string
	number := func(what string, was, is int64) {
		switch {
		case before == nil:
			changes = append(changes, fmt.Sprintf("%s: %d", what, is))
		case was != is:
			changes = append(changes, fmt.Sprintf("%s: %d, was %d", what, is, was))
		}
	}
	number("images", before.GetImages(), after.GetImages())
	number("pins", before.GetPins().GetPins(), after.GetPins().GetPins())
	number("drifted pins", before.GetPins().GetDrifted(), after.GetPins().GetDrifted())
	if before.GetPins().GetGone() > 0 || after.GetPins().GetGone() > 0 {
		number("pins whose digest is gone", before.GetPins().GetGone(), after.GetPins().GetGone())
	}
	number("pending repairs", before.GetIndex().GetPendingRepairs(), after.GetIndex().GetPendingRepairs())
	number("registry fallbacks", before.GetRegistryFallbacks(), after.GetRegistryFallbacks())
	text := func(added, removed string, was, is []string) {
		for _, s := range missingFrom(was, is) {
			changes = append(changes, added+s)
		}
		for _, s := range missingFrom(is, was) {
			changes = append(changes, removed+s)
		}
	}
	text("pull started: ", "pull ended: ", mapped(before.GetPulls(), pullName), mapped(after.GetPulls(), pullName))
	text("problem: ", "solved: ", mapped(before.GetProblems(), (*api.Problem).GetMessage), mapped(after.GetProblems(), (*api.Problem).GetMessage))
	return changes
}

// missingFrom returns the texts of all that have does not contain.
func missingFrom(have, all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(have, s) })
}
