package imagerefs

import (
	"fmt"
	"strings"
)

// list reads a plain list.
func (r *reader) list(name, text string) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		if ref := withoutComment(line); ref != "" {
			r.add(ref, Place{File: name, Path: fmt.Sprintf("line %d", n)})
		}
	}
}

// withoutComment returns a line of a plain list without its comment, and without space around it.
func withoutComment(line string) string {
	line = strings.TrimSpace(strings.TrimPrefix(line, "\ufeff"))
	if strings.HasPrefix(line, "#") {
		return ""
	}
	line, _, _ = strings.Cut(line, " #")
	line, _, _ = strings.Cut(line, "\t#")
	return strings.TrimSpace(line)
}

// looksLikeList reports whether a text is a plain list, and not YAML or JSON: each line is one word that is no mapping, no
// item and no marker of a document.
func looksLikeList(text string) bool {
	found := false
	for line := range strings.Lines(text) {
		word := withoutComment(line)
		if word == "" {
			continue
		}
		if strings.ContainsAny(word, " \t\"'{}[]") || strings.HasSuffix(word, ":") || strings.HasPrefix(word, "-") || word == "..." {
			return false
		}
		found = true
	}
	return found
}
