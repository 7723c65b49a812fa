package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/imagepin/imagepin/integration/measure"
)

// The files of the printed tables, and of the raw numbers.
const (
	tableFile  = "table.txt"
	sharesFile = "shares.txt"
	rawFile    = "results.json"
)

// paste writes the tables of a directory into a document, and draws the charts of its raw numbers.
func paste(doc, dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, rawFile))
	if err != nil {
		return err
	}
	bars, err := recordedBars(b)
	if err != nil {
		return fmt.Errorf("%s: %w", rawFile, err)
	}
	for name, content := range drawCharts(bars) {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	if err := measure.Paste(doc, "table", filepath.Join(dir, tableFile)); err != nil {
		return err
	}
	return measure.Paste(doc, "shares", filepath.Join(dir, sharesFile))
}

// rawRow is a row in results.json: nanoseconds, bytes or counts.
type rawRow struct {
	Metric  string    `json:"metric"`
	Unit    string    `json:"unit"`
	Stock   []float64 `json:"stock,omitempty"`
	Ours    []float64 `json:"imagepin,omitempty"`
	Fails   string    `json:"stockFails,omitempty"`
	Ratio   *spread   `json:"ratio,omitempty"`
	Budget  string    `json:"budget,omitempty"`
	Verdict string    `json:"verdict,omitempty"`
}

// rawResults are the content of results.json.
type rawResults struct {
	About  string      `json:"about"`
	Rows   []rawRow    `json:"rows"`
	Shares []rawShares `json:"shares,omitempty"`
	// Courses are those of the median runs.
	Courses []rawCourse `json:"courses,omitempty"`
}

// rawCourse is the course of a row in results.json.
type rawCourse struct {
	Metric string   `json:"metric"`
	Stock  []moment `json:"stock"`
	Ours   []moment `json:"imagepin"`
}

// rawShares are the shares of a row in results.json.
type rawShares struct {
	Metric string     `json:"metric"`
	Image  imageTimes `json:"image"`
	Stock  []turn     `json:"stock"`
	Ours   []turn     `json:"imagepin"`
}

// recordedBars returns the bars of raw numbers.
func recordedBars(b []byte) ([]ratioBar, error) {
	var raw rawResults
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, err
	}
	var bars []ratioBar
	units := make(map[string]unit)
	for u, name := range unitNames {
		units[name] = u
	}
	for _, r := range raw.Rows {
		u, ok := units[r.Unit]
		if !ok {
			return nil, fmt.Errorf("%s has the unit %q", r.Metric, r.Unit)
		}
		if r.Ratio != nil && !strings.Contains(r.Budget, "+") { // others are compared by a difference
			bars = append(bars, ratioBar{r.Metric, u.text(measure.Median(r.Stock)), u.text(measure.Median(r.Ours)), *r.Ratio})
		}
	}
	return bars, nil
}

var unitNames = map[unit]string{duration: "ns", bytes_: "bytes", count: "count"}

// The files of the charts: the rows that operators ask about, and all ratios.
const (
	summaryFile = "summary.svg"
	chartFile   = "ratios.svg"
)

// drawCharts draws the charts of ratios, by the name of their file. A chart without a bar is left out.
func drawCharts(bars []ratioBar) map[string][]byte {
	files := make(map[string][]byte)
	if some := summarized(bars); len(some) > 0 {
		files[summaryFile] = drawRatios("imagepin and stock containerd: what operators ask about", []part{{bars: some}})
	}
	var parts []part
	for _, s := range subjects {
		if some := s.rows(bars); len(some) > 0 {
			parts = append(parts, part{s.name, some})
		}
	}
	if len(parts) > 0 {
		files[chartFile] = drawRatios("imagepin and stock containerd: all ratios, by subject", parts)
	}
	return files
}

// drawAll draws the charts of ratios, the plots of growth, and the courses, by the name of their file.
func drawAll(results []*result, courses []*course) (map[string][]byte, error) {
	figures := make(map[string]figure)
	for _, p := range growthPlots(results) {
		f, err := p.figure()
		if err != nil {
			return nil, err
		}
		figures[fileName(p.title)+".svg"] = f
	}
	for _, c := range courses {
		drawn, err := c.figures()
		if err != nil {
			return nil, err
		}
		maps.Copy(figures, drawn)
	}
	files := drawCharts(ratioBars(results))
	for name, f := range figures {
		var err error
		if files[name], err = f.svg(); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// write writes the table, all raw numbers and the plots into a directory.
func (b *bench) write(dir, about string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s\n\n", about)
	if err := table(&text, b.results); err != nil {
		return err
	}
	var where bytes.Buffer
	if err := sharesTable(&where, b.shares, runtime.NumCPU()); err != nil {
		return err
	}
	files, err := drawAll(b.results, b.courses)
	if err != nil {
		return err
	}
	files[tableFile], files[sharesFile] = text.Bytes(), where.Bytes()
	raw := rawResults{About: about}
	for _, r := range b.results {
		row := rawRow{
			Metric: r.row.name, Unit: unitNames[r.row.unit], Stock: r.stock, Ours: r.ours,
			Budget: r.row.budget.text(r.row.unit), Verdict: r.verdict(),
		}
		if r.fails != nil {
			row.Fails = oneLine(r.fails)
		}
		if all := finite(r.ratios()); len(all) > 0 && !r.row.gain {
			s := spreadOf(all)
			row.Ratio = &s
		}
		raw.Rows = append(raw.Rows, row)
	}
	for _, s := range b.shares {
		raw.Shares = append(raw.Shares, rawShares{s.name, s.image, s.stock, s.ours})
	}
	for _, c := range b.courses {
		raw.Courses = append(raw.Courses, rawCourse{c.name, medianRun(c.stock), medianRun(c.ours)})
	}
	if files[rawFile], err = json.MarshalIndent(raw, "", " "); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
