package command

import (
	"io"
	"strings"
	"unicode/utf8"
)

// imageTable prints rows as they come. Its columns never become narrower.
type imageTable struct {
	w      io.Writer
	header []string // nil without one
	widths []int    // of the columns, in characters; nil until the header is printed
}

func (t *imageTable) print(rows [][]string) error {
	if t.widths == nil {
		if t.header != nil {
			rows = append([][]string{t.header}, rows...)
		}
		if len(rows) == 0 {
			return nil
		}
		t.widths = make([]int, len(rows[0]))
	}
	for i, row := range rows {
		rows[i] = mapped(row, printable)
	}
	for _, row := range rows {
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

func (t *imageTable) append(text *strings.Builder, row []string) {
	for i, cell := range row {
		text.WriteString(cell)
		if i < len(row)-1 {
			text.WriteString(strings.Repeat(" ", max(0, t.widths[i]-utf8.RuneCountInString(cell))+2))
		}
	}
	text.WriteByte('\n')
}
