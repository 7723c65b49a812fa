package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/imagepin/imagepin/integration/measure"
)

// tableFile and sharesFile are the files of the printed tables.
const (
	tableFile  = "table.txt"
	sharesFile = "shares.txt"
)

// paste writes the tables of a directory into a document.
func paste(doc, dir string) error {
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

// rawShares are the shares of a row in results.json.
type rawShares struct {
	Metric string     `json:"metric"`
	Image  imageTimes `json:"image"`
	Stock  []turn     `json:"stock"`
	Ours   []turn     `json:"imagepin"`
}

var unitNames = map[unit]string{duration: "ns", bytes_: "bytes", count: "count"}

// chartFile is the file of the chart of all ratios.
const chartFile = "ratios.svg"

// drawAll draws the chart of all ratios and the plots of growth, by the name of their file.
func drawAll(results []*result) (map[string][]byte, error) {
	figures := make(map[string]figure)
	if bars := ratioBars(results); len(bars) > 0 {
		figures[chartFile] = ratioChart(bars)
	}
	for _, p := range growthPlots(results) {
		f, err := p.figure()
		if err != nil {
			return nil, err
		}
		figures[fileName(p.title)+".svg"] = f
	}
	files := make(map[string][]byte)
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
	files, err := drawAll(b.results)
	if err != nil {
		return err
	}
	files[tableFile], files[sharesFile] = text.Bytes(), where.Bytes()
	raw := struct {
		About  string      `json:"about"`
		Rows   []rawRow    `json:"rows"`
		Shares []rawShares `json:"shares,omitempty"`
	}{About: about}
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
	if files["results.json"], err = json.MarshalIndent(raw, "", " "); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
