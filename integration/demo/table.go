package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// mark follows a value that is not the expected one.
const mark = " !"

// table is a table with notes below it.
type table struct {
	header []string
	rows   [][]string
	notes  []string
}

// note adds an error as a note and returns the reference to it. An error is too long for a cell.
func (t *table) note(err error) string {
	t.notes = append(t.notes, oneLine(err))
	return fmt.Sprintf("[%d]", len(t.notes))
}

// marked reports whether a cell has the mark.
func (t *table) marked() bool {
	return slices.ContainsFunc(t.rows, func(cells []string) bool {
		return slices.ContainsFunc(cells, func(c string) bool { return strings.HasSuffix(c, mark) })
	})
}

func (t *table) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, cells := range append([][]string{t.header}, t.rows...) {
		fmt.Fprintln(w, "   "+strings.Join(cells, "\t"))
	}
	_ = w.Flush() // if the output is closed, the demo's context has ended
}

// short returns the first 12 characters of a digest.
func short(digest string) string {
	_, hex, ok := strings.Cut(digest, ":")
	if !ok {
		return "-"
	}
	return hex[:min(12, len(hex))]
}

// hash matches a digest or a container ID.
var hash = regexp.MustCompile("[0-9a-f]{64}")

// oneLine returns the text of an error without line breaks and with short hashes.
func oneLine(err error) string {
	if err == nil {
		return ""
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	return hash.ReplaceAllStringFunc(text, func(h string) string { return h[:12] + "..." })
}
