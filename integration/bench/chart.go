package main

import (
	"fmt"
	"math"

	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/integration/svg"
)

// ratioBar is one bar of a chart: the median of the ratios of a row, with minimum and maximum.
type ratioBar struct {
	name        string
	stock, ours string // the medians, with their unit
	spread
}

// ratioBars returns the bars of all rows that have a ratio, in their order.
func ratioBars(results []*result) []ratioBar {
	var bars []ratioBar
	for _, r := range results {
		if !r.hasRatio() {
			continue
		}
		if all := finite(r.ratios()); len(all) > 0 {
			bars = append(bars, ratioBar{
				r.row.name, r.row.unit.text(measure.Median(r.stock)), r.row.unit.text(measure.Median(r.ours)), spreadOf(all),
			})
		}
	}
	return bars
}

// The range of the axis. A bar outside of it ends at its edge with an arrow; the column has the number.
const lowestRatio, highestRatio = 0.05, 2

// barColors are the colors of bars, in addition to those of all pictures: less or more than stock.
const barColors = `
.less{fill:#0969da}.more{fill:#bc4c00}.grid{stroke:#d1d9e0}.one{stroke:#59636e}.range{stroke:#1f2328}
@media(prefers-color-scheme:dark){.less{fill:#4493f8}.more{fill:#f0883e}.grid{stroke:#3d444d}.one{stroke:#9198a1}.range{stroke:#f0f6fc}}
`

// The columns of a chart.
const (
	chartWidth  = 960.0 // at least
	chartAxis   = 320.0 // at least
	chartMargin = 20.0
	chartText   = 11.0
	chartLine   = 18.0
	cellWidth   = 68.0 // of stock, imagepin and the ratio
	cellGap     = 8.0
)

// part is a part of a chart, with a heading if it has a name.
type part struct {
	name string
	bars []ratioBar
}

// ratioChart lays a chart of ratios out: a bar from 1.00 to the left if imagepin needs less than stock, and to the right if it needs
// more.
func ratioChart(parts []part) *svg.Picture {
	widest := 0.0
	for _, part := range parts {
		for _, b := range part.bars {
			widest = max(widest, svg.Width(b.name, chartText))
		}
	}
	cells := chartMargin + widest + cellGap
	a := axis{from: cells + 3*(cellWidth+cellGap) + 16}
	a.to = max(chartWidth-chartMargin-16, a.from+chartAxis)
	p := &svg.Picture{Width: a.to + chartMargin + 16, Page: true}
	y := chartMargin + chartText
	p.Text(chartMargin, y, chartText, cells, "dim", "median of the repetitions")
	for i, name := range []string{"stock", "imagepin", "ratio"} {
		right(p, cells+float64(i)*(cellWidth+cellGap), y, "dim", name)
	}
	for _, v := range []float64{0.05, 0.1, 0.2, 0.5, 1, 2} {
		label := fmt.Sprintf("%.2f", v)
		at := a.at(v) - svg.Width(label, chartText)/2
		p.Text(at, y, chartText, at+svg.Width(label, chartText), "dim", label)
	}
	y += 8
	for _, part := range parts {
		if part.name != "" {
			y += chartLine + 4
			p.Text(chartMargin, y, 12, a.from-20, "text", part.name)
			y += 6
		}
		top := y
		for i := range part.bars {
			y = top + float64(i+1)*chartLine
		}
		a.grid(p, top, y+2)
		for i, b := range part.bars {
			line := top + float64(i+1)*chartLine
			p.Text(chartMargin, line-4, chartText, cells, "text", b.name)
			for i, text := range []string{b.stock, b.ours, fmt.Sprintf("%.2f", b.Median)} {
				right(p, cells+float64(i)*(cellWidth+cellGap), line-4, "text", text)
			}
			a.bar(p, line-chartLine/2+1, b)
		}
	}
	y += chartLine + 4
	p.Text(chartMargin, y, chartText, p.Width-chartMargin, "dim",
		"ratio: imagepin ÷ stock, blue is less. Thin lines: minimum to maximum. An arrow: outside of the axis, which is logarithmic.")
	p.Height = y + chartMargin - 4
	return p
}

// right adds a text that ends at the right edge of a cell.
func right(p *svg.Picture, x, y float64, class, text string) {
	p.Text(x+cellWidth-svg.Width(text, chartText), y, chartText, x+cellWidth+1, class, text)
}

// drawRatios draws a chart of ratios.
func drawRatios(title string, parts []part) []byte {
	var text string
	for _, part := range parts {
		for _, b := range part.bars {
			text += fmt.Sprintf("%s: stock %s, imagepin %s, ratio %.2f\n", b.name, b.stock, b.ours, b.Median)
		}
	}
	return ratioChart(parts).Finish(title, text, svg.Colors+barColors)
}

// axis is the logarithmic axis of a chart.
type axis struct{ from, to float64 }

// at returns the place of a ratio, or the end of the axis if it is outside of it.
func (a axis) at(ratio float64) float64 {
	ratio = min(max(ratio, lowestRatio), highestRatio)
	return a.from + (a.to-a.from)*math.Log(ratio/lowestRatio)/math.Log(highestRatio/lowestRatio)
}

// grid draws the lines of the axis.
func (a axis) grid(p *svg.Picture, from, to float64) {
	for _, v := range []float64{0.05, 0.1, 0.2, 0.5, 1, 2} {
		class := "grid"
		if v == 1 {
			class = "one"
		}
		p.Add(`<path class="%s" d="M%s %sV%s"/>`, class, svg.N(a.at(v)), svg.N(from), svg.N(to))
	}
}

// bar draws a bar around y.
func (a axis) bar(p *svg.Picture, y float64, b ratioBar) {
	const thick = 9.0
	class := "less"
	if b.Median > 1 {
		class = "more"
	}
	from, to := a.at(min(1, b.Median)), a.at(max(1, b.Median))
	p.Add(`<rect x="%s" y="%s" width="%s" height="%s" class="%s"/>`, svg.N(from), svg.N(y-thick/2), svg.N(max(to-from, 0.1)), svg.N(thick), class)
	p.Add(`<path class="range" d="M%s %sH%s"/>`, svg.N(a.at(b.Min)), svg.N(y), svg.N(a.at(b.Max)))
	switch {
	case b.Median < lowestRatio:
		p.Add(`<path class="%s" d="M%s %sl-10 %sl10 %sz"/>`, class, svg.N(a.from), svg.N(y-thick/2-2), svg.N(thick/2+2), svg.N(thick/2+2))
	case b.Median > highestRatio:
		p.Add(`<path class="%s" d="M%s %sl10 %sl-10 %sz"/>`, class, svg.N(a.to), svg.N(y-thick/2-2), svg.N(thick/2+2), svg.N(thick/2+2))
	}
}
