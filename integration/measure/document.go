package measure

import (
	"fmt"
	"os"
	"strings"
)

// Paste writes the text of a file into a document, as an indented block between the comments "<!-- NAME: begin -->" and
// "<!-- NAME: end -->". It replaces what is there. An empty file leaves nothing between the comments.
func Paste(doc, name, file string) error {
	text, err := os.ReadFile(doc)
	if err != nil {
		return err
	}
	t, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+name+": begin -->", "<!-- "+name+": end -->"
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("%s has no %s and %s", doc, begin, end)
	}
	return os.WriteFile(doc, []byte(before+begin+"\n"+indented(string(t))+end+after), 0o644)
}

// indented returns the text as an indented block of code. There is none if the text is empty.
func indented(text string) string {
	if text == "" {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n")
	for line := range strings.Lines(text) {
		if line != "\n" {
			b.WriteString("    ")
		}
		b.WriteString(line)
	}
	b.WriteString("\n")
	return b.String()
}
