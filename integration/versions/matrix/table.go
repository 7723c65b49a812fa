package matrix

import (
	"fmt"
	"strings"
)

// The lines before the tables in the document.
const (
	BeginContainerds = "<!-- make versions-table -->\n"
	BeginKubelets    = "<!-- make versions-table: kubelets -->\n"
)

// end is the line after a table.
const end = "<!-- end -->\n"

// Table returns the table of containerds.
func Table(all []Containerd) string {
	var b strings.Builder
	b.WriteString("| containerd | imagepin in it | `imagepin serve` beside it |\n|---|---|---|\n")
	for _, c := range all {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", c.Name, c.Plugin, c.Serve)
	}
	return b.String()
}

// Insert replaces the table after the line begin in a document.
func Insert(doc, begin, table string) (string, error) {
	before, rest, begun := strings.Cut(doc, begin)
	_, after, ended := strings.Cut(rest, end)
	if !begun || !ended {
		return "", fmt.Errorf("the document has no %q followed by %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + table + end + after, nil
}

// Format returns the file with the results of the tests.
func Format(all []Containerd) []byte {
	var b strings.Builder
	for _, c := range all {
		fmt.Fprintf(&b, "%s\t%s\t%s\n", c.Name, c.Plugin, c.Serve)
	}
	return []byte(b.String())
}

// Parse reads what [Format] wrote.
func Parse(text []byte) ([]Containerd, error) {
	var all []Containerd
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 3 {
			return nil, fmt.Errorf("invalid line of results %q", line)
		}
		all = append(all, Containerd{Name: fields[0], Plugin: Outcome(fields[1]), Serve: Outcome(fields[2])})
	}
	return all, nil
}
