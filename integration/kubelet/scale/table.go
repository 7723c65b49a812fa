package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/imagepin/imagepin/integration/measure"
)

// results are all numbers.
type results struct {
	about   string
	stored  stored
	columns []column // of the heartbeats alone, the connections, and the scenarios
	starts  []*starts
}

// print writes the table: one part for claims and heartbeats, one for etcd, and one for the starts of pods.
func (r results) print(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s\n\n", r.about); err != nil {
		return err
	}
	if err := measure.Table(w, r.claimLines(), false); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := measure.Table(w, r.stored.lines(), false); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return measure.Table(w, r.startLines(), true)
}

// line is a line of the part for claims. A column without claims has a dash in lines that are about claims.
type line struct {
	name   string
	claims bool
	cell   func(column) string
}

var claimLines = []line{
	{"new ImagePins", true, func(c column) string { return measure.Thousands(c.pins) }},
	{"agents that created an ImagePin", true, func(c column) string { return measure.Thousands(c.won) }},
	{"agents whose first attempt failed", true, func(c column) string { return measure.Thousands(c.failed) }},
	{"claim: p50", true, func(c column) string { return quantile(c.took, 0.5) }},
	{"claim: p99", true, func(c column) string { return quantile(c.took, 0.99) }},
	{"claim: maximum", true, func(c column) string { return quantile(c.took, 1) }},
	{"duration", false, func(c column) string { return measure.Duration(c.all) }},
	{"answers 429", false, func(c column) string { return measure.Thousands(c.rejected) }},
	{"Events", true, func(c column) string { return measure.Thousands(c.events) }},
	{"API server: CPU", false, func(c column) string { return measure.Duration(c.server) }},
	{"API server: maximum memory (RSS)", false, func(c column) string { return measure.Megabytes(c.peak) }},
	{"etcd: CPU", false, func(c column) string { return measure.Duration(c.etcd) }},
	{"benchmark process: CPU", false, func(c column) string { return measure.Duration(c.self) }},
	{"heartbeats", false, func(c column) string { return measure.Thousands(len(c.beats.took) + c.beats.failed) }},
	{"heartbeats that failed", false, func(c column) string { return measure.Thousands(c.beats.failed) }},
	{"oldest lease", false, func(c column) string { return measure.Duration(c.beats.oldest) }},
	{"heartbeat: p50", false, func(c column) string { return quantile(c.beats.took, 0.5) }},
	{"heartbeat: p99", false, func(c column) string { return quantile(c.beats.took, 0.99) }},
}

func (r results) claimLines() [][]string {
	header := []string{""}
	for _, c := range r.columns {
		header = append(header, c.name)
	}
	lines := [][]string{header}
	for _, l := range claimLines {
		cells := []string{l.name}
		for _, c := range r.columns {
			if l.claims && c.agents == 0 {
				cells = append(cells, "–")
			} else {
				cells = append(cells, l.cell(c))
			}
		}
		lines = append(lines, cells)
	}
	return lines
}

// quantile formats a quantile of durations. Without durations, it is a dash.
func quantile(took []float64, q float64) string {
	if len(took) == 0 {
		return "–"
	}
	return measure.Duration(time.Duration(measure.Quantile(took, q)))
}

func (s stored) lines() [][]string {
	return [][]string{
		{"stored ImagePins", measure.Thousands(s.pins)},
		{"etcd: bytes of each ImagePin", measure.Thousands(int(s.each()))},
		{"etcd: database, without ImagePins", measure.Megabytes(s.before.file)},
		{"etcd: database, with ImagePins", measure.Megabytes(s.after.file)},
		{"API server: memory (RSS), without ImagePins", measure.Megabytes(s.rss[0])},
		{"API server: memory (RSS), with ImagePins", measure.Megabytes(s.rss[1])},
	}
}

func (r results) startLines() [][]string {
	lines := [][]string{{"start of a pod", "without", "with ImagePins", "difference (min–max)", "budget", ""}}
	for _, s := range r.starts {
		lines = append(lines,
			s.line(s.name+": image, CreateContainer", func(t start) time.Duration { return t.image }, s.budget),
			s.line(s.name+": all calls", func(t start) time.Duration { return t.whole }, 0))
	}
	return lines
}

// line returns the medians of a duration, and the median of its differences in each round. limit is the budget of that.
func (s *starts) line(name string, of func(start) time.Duration, limit time.Duration) []string {
	var without, with, differences []float64
	for i := range s.with {
		w, o := float64(of(s.with[i])), float64(of(s.without[i]))
		without, with, differences = append(without, o), append(with, w), append(differences, w-o)
	}
	more := measure.Median(differences)
	cells := []string{
		name, measure.Duration(time.Duration(measure.Median(without))), measure.Duration(time.Duration(measure.Median(with))),
		fmt.Sprintf("%s (%s–%s)", signed(more), signed(slices.Min(differences)), signed(slices.Max(differences))), "", "",
	}
	if limit > 0 {
		cells[4], cells[5] = "≤ "+signed(float64(limit)), measure.Verdict(more, float64(limit))
	}
	return cells
}

func signed(d float64) string {
	text := measure.Duration(time.Duration(d))
	if d >= 0 {
		return "+" + text
	}
	return text
}
