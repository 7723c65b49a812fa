package main

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// ratioBar is one bar of the chart: the median of the ratios of a row, with minimum and maximum.
type ratioBar struct {
	name string
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
			bars = append(bars, ratioBar{r.row.name, spreadOf(all)})
		}
	}
	return bars
}

// The range of the chart's axis. A bar outside of it ends at its edge; the label has the number.
const lowestRatio, highestRatio = 0.02, 2

// clipped returns a ratio, or the end of the axis if it is outside of it.
func clipped(ratio float64) float64 { return min(max(ratio, lowestRatio), highestRatio) }

// ratioChart draws a bar for each ratio, from 1.00 to the left if imagepin needs less than stock, and to the right if
// it needs more.
func ratioChart(bars []ratioBar) figure {
	bars = slices.Clone(bars)
	slices.Reverse(bars) // the axis begins at the bottom
	p := newPlot("imagepin ÷ stock containerd: below 1.00 is less time, memory, or requests")
	p.X.Scale = plot.LogScale{}
	var ratios, names plot.ConstantTicks
	for _, v := range []float64{0.02, 0.05, 0.1, 0.2, 0.5, 1, 2} {
		ratios = append(ratios, plot.Tick{Value: v, Label: fmt.Sprintf("%.2f", v)})
	}
	for i, b := range bars {
		names = append(names, plot.Tick{Value: float64(i), Label: fmt.Sprintf("%s   %.2f", b.name, b.Median)})
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = ratios, names
	p.Y.Tick.Length, p.Y.Tick.Label.Font.Size = 0, 8
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = gridColor, nil
	p.Add(grid, barPlotter(bars))
	p.X.Min, p.X.Max = lowestRatio, highestRatio
	p.Y.Min, p.Y.Max = -0.7, float64(len(bars))-0.3
	p.X.Padding, p.Y.Padding = 0, 0
	const row, around = 12, 70
	return figure{p, 700, row*vg.Length(len(bars)) + around}
}

// barPlotter draws the bars of the chart at y = 0, 1, …
type barPlotter []ratioBar

// Plot implements [plot.Plotter].
func (bars barPlotter) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	const thick = 7
	for i, b := range bars {
		var fill color.Color = oursColor
		if b.Median > 1 {
			fill = stockColor
		}
		from, to, at := x(math.Min(1, clipped(b.Median))), x(math.Max(1, clipped(b.Median))), y(float64(i))
		c.FillPolygon(fill, []vg.Point{{X: from, Y: at - thick/2}, {X: to, Y: at - thick/2}, {X: to, Y: at + thick/2}, {X: from, Y: at + thick/2}})
		c.StrokeLine2(draw.LineStyle{Color: color.Gray{0x55}, Width: 1}, x(clipped(b.Min)), at, x(clipped(b.Max)), at)
	}
	one := x(1)
	c.StrokeLine2(draw.LineStyle{Color: color.Black, Width: 1}, one, c.Min.Y, one, c.Max.Y)
}
