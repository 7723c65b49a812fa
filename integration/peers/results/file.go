package results

import (
	"fmt"
	"slices"
	"strings"
)

// Run is one suite with one containerd.
type Run struct {
	Suite string
	// With is "stock", "plugin" or "serve".
	With     string
	Outcomes Outcomes
}

// Format returns the file with the outcomes of runs.
func Format(runs []Run) []byte {
	var lines []string
	for _, r := range runs {
		for name, outcome := range r.Outcomes {
			lines = append(lines, fmt.Sprintf("%s\t%s\t%s\t%s\n", r.Suite, r.With, outcome, name))
		}
	}
	slices.Sort(lines)
	return []byte(strings.Join(lines, ""))
}

// Parse reads what [Format] wrote.
func Parse(text []byte) ([]Run, error) {
	var runs []Run
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 4 {
			return nil, fmt.Errorf("invalid line of results %q", line)
		}
		if len(runs) == 0 || runs[len(runs)-1].Suite != f[0] || runs[len(runs)-1].With != f[1] {
			runs = append(runs, Run{f[0], f[1], Outcomes{}})
		}
		runs[len(runs)-1].Outcomes[f[3]] = Outcome(f[2])
	}
	return runs, nil
}
