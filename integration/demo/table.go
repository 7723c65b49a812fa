package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// mark is put behind what is not as it should be.
const mark = " !"

// table is a table with notes below it.
type table struct {
	header []string
	rows   [][]string
	notes  []string
}

// note keeps an error, which is too long for a cell, and returns the mark of it.
func (t *table) note(err error) string {
	t.notes = append(t.notes, oneLine(err))
	return fmt.Sprintf("[%d]", len(t.notes))
}

// marked says that a cell has the mark.
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
	_ = w.Flush() // an output that is closed has ended the demo's context
}

// short is a digest as people read it.
func short(digest string) string {
	_, hex, ok := strings.Cut(digest, ":")
	if !ok {
		return "-"
	}
	return hex[:min(12, len(hex))]
}

// hash is a digest or a container's ID, of which the beginning is enough for people.
var hash = regexp.MustCompile("[0-9a-f]{64}")

// oneLine is an error's text without line breaks, with its hashes cut short.
func oneLine(err error) string {
	if err == nil {
		return ""
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	return hash.ReplaceAllStringFunc(text, func(h string) string { return h[:12] + "..." })
}
