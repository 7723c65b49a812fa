package command

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// imageTable prints rows as they come. Its columns never become narrower. A row with a reference by digest does not
// widen the columns if there are other rows: these still fit a terminal, and the reference is complete.
type imageTable struct {
	w      io.Writer
	header []string
	widths []int // of the columns, in characters; nil until the header is printed
}

func (t *imageTable) print(rows [][]string) error {
	aligned := slices.DeleteFunc(slices.Clone(rows), hasDigest)
	if len(aligned) == 0 {
		aligned = rows
	}
	if t.widths == nil {
		t.widths = make([]int, len(t.header))
		rows = append([][]string{t.header}, rows...)
		aligned = append(aligned, t.header)
	}
	for _, row := range aligned {
		for i, cell := range row {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
		}
	}
	var text strings.Builder
	for _, row := range rows {
		t.append(&text, row)
	}
	_, err := io.WriteString(t.w, text.String())
	return err
}

// hasDigest reports whether a row has a reference by digest.
func hasDigest(row []string) bool {
	return slices.ContainsFunc(row, func(cell string) bool { return strings.Contains(cell, "@") })
}

func (t *imageTable) append(text *strings.Builder, row []string) {
	for i, cell := range row {
		text.WriteString(cell)
		if i < len(row)-1 {
			text.WriteString(strings.Repeat(" ", max(0, t.widths[i]-utf8.RuneCountInString(cell))+2))
		}
	}
	text.WriteByte('\n')
}
