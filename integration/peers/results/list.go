package results

import (
	"fmt"
	"slices"
	"strings"
)

// Entry is a line of a list: a test of a suite, and the reason why it is in the list.
type Entry struct{ Suite, With, Test, Reason string }

// ParseList reads a list with four columns, which tabs separate. Lines that begin with # are comments.
func ParseList(text string) ([]Entry, error) {
	var all []Entry
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 4 || slices.Contains(f, "") {
			return nil, fmt.Errorf("%q is not a suite, a containerd, a test and a reason, separated by tabs", line)
		}
		all = append(all, Entry{f[0], f[1], f[2], f[3]})
	}
	return all, nil
}

// Check compares the differences of a suite with those that are accepted. ran are the tests that have run.
func Check(suite, with string, differences []string, ran Outcomes, accepted []Entry) (unlisted, stale []string) {
	listed := map[string]bool{}
	for _, e := range accepted {
		if e.Suite != suite || e.With != with {
			continue
		}
		listed[e.Test] = true
		if _, ok := ran[e.Test]; ok && !slices.Contains(differences, e.Test) {
			stale = append(stale, e.Test)
		}
	}
	for _, name := range differences {
		if !listed[name] {
			unlisted = append(unlisted, name)
		}
	}
	return unlisted, stale
}
