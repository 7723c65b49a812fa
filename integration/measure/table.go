package measure

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table writes lines of cells in columns. Columns are aligned to the right, except the first one. If the last column is
// not a number, textAtEnd aligns it to the left. All lines have the same number of cells.
func Table(w io.Writer, lines [][]string, textAtEnd bool) error {
	var widths []int
	for _, cells := range lines {
		for i, c := range cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	for _, cells := range lines {
		var b strings.Builder
		for i, c := range cells {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if i == 0 || textAtEnd && i == len(cells)-1 {
				b.WriteString(c + pad)
			} else {
				b.WriteString(pad + c)
			}
			b.WriteString("  ")
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(b.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}
