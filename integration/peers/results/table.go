package results

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// begin and end are the lines before and after the table.
const (
	begin = "<!-- make peers-table -->\n"
	end   = "<!-- end -->\n"
)

// Suite is a row of the table.
type Suite struct {
	Name string
	// Title is what the row is called, with the version.
	Title string
}

// Table returns the table of the suites, and the tests that fail with stock containerd too, by the reasons in failing.
func Table(suites []Suite, runs []Run, failing []Entry) string {
	var b strings.Builder
	b.WriteString("| tests | stock containerd | imagepin in containerd | `imagepin serve` | worse with imagepin |\n|---|---|---|---|---|\n")
	byReason := map[string][]string{}
	for _, s := range suites {
		with := map[string]Outcomes{}
		for _, r := range runs {
			if r.Suite == s.Name {
				with[r.With] = r.Outcomes
			}
		}
		stock, different := with["stock"], map[string]bool{}
		for _, w := range []string{"plugin", "serve"} {
			if with[w] != nil {
				for _, name := range Differences(stock, with[w]) {
					different[name] = true
				}
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", s.Title, counts(stock), counts(with["plugin"]), counts(with["serve"]), list(slices.Sorted(maps.Keys(different))))
		for _, name := range stock.Names(Failed) {
			reason := "no reason is known"
			for _, e := range failing {
				if e.Suite == s.Name && e.Test == name {
					reason = e.Reason
				}
			}
			byReason[reason] = append(byReason[reason], "`"+name+"`")
		}
	}
	if len(byReason) > 0 {
		b.WriteString("\n<details><summary>Tests that fail with stock containerd too, where this table was made</summary>\n\n")
		for _, reason := range slices.Sorted(maps.Keys(byReason)) {
			fmt.Fprintf(&b, "- %s: %s\n", reason, strings.Join(byReason[reason], ", "))
		}
		b.WriteString("\n</details>\n")
	}
	return b.String()
}

// counts returns the numbers of tests by outcome.
func counts(o Outcomes) string {
	if o == nil {
		return "-"
	}
	text := fmt.Sprintf("%d pass", len(o.Names(Passed)))
	if n := len(o.Names(Failed)); n > 0 {
		text += fmt.Sprintf(", %d fail", n)
	}
	if n := len(o.Names(Skipped)); n > 0 {
		text += fmt.Sprintf(", %d skipped", n)
	}
	return text
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return "`" + strings.Join(names, "`, `") + "`"
}

// Insert replaces the table in a document.
func Insert(doc, table string) (string, error) {
	before, _, after, err := cut(doc)
	if err != nil {
		return "", err
	}
	return before + begin + table + end + after, nil
}

// CheckRows returns an error unless the table of a document has the rows of the suites in their order, and exactly the accepted
// differences. The numbers of tests are those of the machine where the table was made.
func CheckRows(doc string, suites []Suite, accepted []Entry) error {
	_, table, _, err := cut(doc)
	if err != nil {
		return err
	}
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 5 || strings.HasPrefix(line, "| tests") || strings.HasPrefix(line, "|---") {
			continue
		}
		if rows == len(suites) {
			return fmt.Errorf("the table has a row too many: %s", strings.TrimSpace(line))
		}
		s := suites[rows]
		different := map[string]bool{}
		for _, e := range accepted {
			if e.Suite == s.Name {
				different[e.Test] = true
			}
		}
		if title := strings.TrimSpace(cells[0]); title != s.Title {
			return fmt.Errorf("row %d of the table is %q, want %q", rows+1, title, s.Title)
		}
		if got, want := strings.TrimSpace(cells[4]), list(slices.Sorted(maps.Keys(different))); got != want {
			return fmt.Errorf("%s: tests that are worse with imagepin are %s in the table, and %s in differences.txt", s.Title, got, want)
		}
		rows++
	}
	if rows != len(suites) {
		return fmt.Errorf("the table has %d rows, want %d", rows, len(suites))
	}
	return nil
}

func cut(doc string) (before, table, after string, _ error) {
	before, rest, begun := strings.Cut(doc, begin)
	table, after, ended := strings.Cut(rest, end)
	if !begun || !ended {
		return "", "", "", fmt.Errorf("the document has no %q followed by %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before, table, after, nil
}
