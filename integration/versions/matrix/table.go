package matrix

import (
	"fmt"
	"strings"
)

// The table is between these lines.
const (
	begin = "<!-- make versions-table -->\n"
	end   = "<!-- end -->\n"
)

// Table is the table of those.
func Table(all []Containerd) string {
	var b strings.Builder
	b.WriteString("| containerd | imagepin in it | `imagepin serve` beside it |\n|---|---|---|\n")
	for _, c := range all {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", c.Name, c.Plugin, c.Serve)
	}
	return b.String()
}

// Insert gives a document with another table in place of its own.
func Insert(doc, table string) (string, error) {
	before, rest, begun := strings.Cut(doc, begin)
	_, after, ended := strings.Cut(rest, end)
	if !begun || !ended {
		return "", fmt.Errorf("the document has no %q and after it %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + table + end + after, nil
}

// Format is the file of what was tested.
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
			return nil, fmt.Errorf("%q is no line of results", line)
		}
		all = append(all, Containerd{Name: fields[0], Plugin: Outcome(fields[1]), Serve: Outcome(fields[2])})
	}
	return all, nil
}
