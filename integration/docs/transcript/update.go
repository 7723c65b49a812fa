package transcript

import (
	"os"
	"strings"
)

// Update writes outputs of a real run into the document, by the line of their items. Digests are shortened. The output
// keeps the indentation of the block.
func (d *Document) Update(outputs map[int]string) error {
	var out strings.Builder
	next := 0
	for _, i := range d.Items {
		got, ok := outputs[i.Line]
		if !ok {
			continue
		}
		out.WriteString(strings.Join(d.lines[next:i.first], ""))
		for line := range strings.Lines(strings.TrimRight(Shorten(got), " \n")) {
			out.WriteString(strings.TrimRight(d.indent(i)+strings.TrimRight(line, "\n"), " ") + "\n")
		}
		// Blank lines before the next command stay.
		for n := i.end; n > i.first && strings.TrimSpace(d.lines[n-1]) == ""; n-- {
			out.WriteString("\n")
		}
		next = i.end
	}
	out.WriteString(strings.Join(d.lines[next:], ""))
	return os.WriteFile(d.Path, []byte(out.String()), 0o644)
}

// indent returns the indentation of the block of an item.
func (d *Document) indent(i Item) string {
	line := d.lines[i.first-1]
	return line[:len(line)-len(strings.TrimLeft(line, " "))]
}
