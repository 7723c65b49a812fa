package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/imagepin/imagepin/integration/measure"
)

var header = []string{"metric", "stock", "imagepin", "ratio (min–max)", "budget", ""}

// cells returns the cells of a result in the table.
func (r *result) cells() []string {
	stock, ours := "–", "–"
	if len(r.stock) > 0 {
		stock = r.row.unit.text(measure.Median(r.stock))
	}
	if len(r.ours) > 0 {
		ours = r.row.unit.text(measure.Median(r.ours))
	}
	compared := ""
	if len(r.stock) > 0 && len(r.ours) > 0 && !r.row.gain {
		if r.row.budget.kind == moreBudget {
			d := spreadOf(r.differences())
			u := r.row.unit
			compared = fmt.Sprintf("%s (%s–%s)", signed(u, d.Median), signed(u, d.Min), signed(u, d.Max))
		} else {
			s := spreadOf(r.ratios())
			compared = fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Min, s.Max)
		}
	}
	return []string{r.row.name, stock, ours, compared, r.row.budget.text(r.row.unit), r.verdict()}
}

func signed(u unit, v float64) string {
	if v >= 0 {
		return "+" + u.text(v)
	}
	return u.text(v)
}

// table writes all results, and the errors of stock below them.
func table(w io.Writer, results []*result) error {
	lines := [][]string{header}
	var notes []string
	for _, r := range results {
		cells := r.cells()
		if r.fails != nil {
			note := oneLine(r.fails)
			i := len(notes)
			for j, n := range notes {
				if n == note {
					i = j
				}
			}
			if i == len(notes) {
				notes = append(notes, note)
			}
			cells[1] = fmt.Sprintf("fails [%d]", i+1)
		}
		lines = append(lines, cells)
	}
	if err := measure.Table(w, lines, true); err != nil {
		return err
	}
	for i, n := range notes {
		if _, err := fmt.Fprintf(w, "[%d] %s\n", i+1, n); err != nil {
			return err
		}
	}
	return nil
}

// longHash matches a digest or an ID.
var longHash = regexp.MustCompile("[0-9a-f]{64}")

// oneLine returns the text of an error without line breaks and with short hashes.
func oneLine(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	return longHash.ReplaceAllStringFunc(text, func(h string) string { return h[:12] + "…" })
}
