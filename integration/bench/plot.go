package main

import (
	"bytes"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/imagepin/imagepin/integration/measure"
)

// figure is a plot and its size.
type figure struct {
	plot          *plot.Plot
	width, height vg.Length
}

// svg draws the figure. The bounding boxes of texts are those of Liberation Sans, which Arial and Helvetica have too.
func (f figure) svg() ([]byte, error) {
	c := vgsvg.New(f.width, f.height)
	f.draw(draw.New(c))
	var b bytes.Buffer
	_, err := c.WriteTo(&b)
	return bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")), err
}

// draw draws the figure on a white background, so that it is legible on dark pages, with a margin.
func (f figure) draw(c draw.Canvas) {
	c.FillPolygon(color.White, []vg.Point{{}, {X: f.width}, {X: f.width, Y: f.height}, {Y: f.height}})
	const margin = 8
	f.plot.Draw(draw.Crop(c, margin, -margin, margin, -margin))
}

var (
	stockColor = color.NRGBA{0xd9, 0x82, 0x2b, 0xff}
	oursColor  = color.NRGBA{0x2b, 0x7f, 0xd9, 0xff}
	gridColor  = color.NRGBA{0xdd, 0xdd, 0xdd, 0xff}
)

// newPlot returns a plot with a title, without a range.
func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	sans := font.Font{Typeface: "Liberation", Variant: "Sans", Size: 9}
	for _, style := range []*text.Style{&p.X.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		style.Font = sans
	}
	sans.Size = 11
	p.Title.TextStyle.Font = sans
	p.Title.Padding = 6
	return p
}

func addGrid(p *plot.Plot) {
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = gridColor, gridColor
	p.Add(grid)
}

// growthPlot shows how a number grows with the number of images, for both sides.
type growthPlot struct {
	title  string
	unit   unit
	points []point
}

// point has the samples for one number of images.
type point struct {
	x           int
	stock, ours []float64
}

// growthPlots returns the plots of all curves that have more than one point.
func growthPlots(results []*result) []growthPlot {
	var all []growthPlot
	for _, r := range results {
		if r.row.curve == "" {
			continue
		}
		i := slices.IndexFunc(all, func(p growthPlot) bool { return p.title == r.row.curve })
		if i < 0 {
			all = append(all, growthPlot{title: r.row.curve, unit: r.row.unit})
			i = len(all) - 1
		}
		all[i].points = append(all[i].points, point{r.row.x, finite(r.stock), finite(r.ours)})
	}
	return slices.DeleteFunc(all, func(p growthPlot) bool { return len(p.points) < 2 || len(p.values()) == 0 })
}

// finite returns the finite numbers. JSON and plots cannot have others.
func finite(all []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(all), func(v float64) bool { return math.IsInf(v, 0) || math.IsNaN(v) })
}

// values returns all positive values, because both axes are logarithmic.
func (p growthPlot) values() []float64 {
	var all []float64
	for _, at := range p.points {
		all = append(all, at.stock...)
		all = append(all, at.ours...)
	}
	return slices.DeleteFunc(all, func(v float64) bool { return v <= 0 })
}

// figure draws medians as lines, and bars from minimum to maximum.
func (p growthPlot) figure() (figure, error) {
	g := newPlot(p.title)
	g.X.Label.Text = "images on the node"
	g.X.Scale, g.Y.Scale = plot.LogScale{}, plot.LogScale{}
	var counts plot.ConstantTicks
	for _, at := range p.points {
		counts = append(counts, plot.Tick{Value: float64(at.x), Label: measure.Thousands(at.x)})
	}
	g.X.Tick.Marker = counts
	// Whole decades, so that plots can be compared.
	values := p.values()
	low, high := math.Floor(math.Log10(slices.Min(values))), math.Ceil(math.Log10(slices.Max(values)))
	if low == high {
		high++
	}
	g.Y.Tick.Marker = decades(low, high, p.unit)
	addGrid(g)
	for _, side := range []struct {
		name  string
		color color.Color
		of    func(point) []float64
	}{
		{"stock", stockColor, func(at point) []float64 { return at.stock }},
		{"imagepin", oursColor, func(at point) []float64 { return at.ours }},
	} {
		var medians spreads
		for _, at := range p.points {
			if s := spreadOf(side.of(at)); s.Min > 0 {
				medians.XYs = append(medians.XYs, plotter.XY{X: float64(at.x), Y: s.Median})
				medians.all = append(medians.all, s)
			}
		}
		if len(medians.XYs) == 0 {
			continue
		}
		line, points, err := plotter.NewLinePoints(medians.XYs)
		if err != nil {
			return figure{}, err
		}
		bars, err := plotter.NewYErrorBars(medians)
		if err != nil {
			return figure{}, err
		}
		line.Color, points.Color, bars.Color = side.color, side.color, side.color
		line.Width, points.Shape = 1.5, draw.CircleGlyph{}
		g.Add(bars, line, points)
		g.Legend.Add(side.name, line, points)
	}
	// After the plotters, which extend the ranges.
	g.Y.Min, g.Y.Max = math.Pow(10, low), math.Pow(10, high)
	g.X.Min, g.X.Max = float64(p.points[0].x), float64(p.points[len(p.points)-1].x)
	g.X.Padding, g.Y.Padding = 8, 4
	g.Legend.Top, g.Legend.Left, g.Legend.Padding = true, true, 2
	g.Legend.XOffs = 6
	return figure{g, 372, 236}, nil
}

// spreads are medians with their distances to the minimum and the maximum.
type spreads struct {
	plotter.XYs
	all []spread
}

// YError implements [plotter.YErrorer].
func (s spreads) YError(i int) (low, high float64) {
	return s.all[i].Median - s.all[i].Min, s.all[i].Max - s.all[i].Median
}

// decades returns ticks at powers of ten.
func decades(low, high float64, u unit) plot.Ticker {
	var ticks plot.ConstantTicks
	for exponent := low; exponent <= high; exponent++ {
		v := math.Pow(10, exponent)
		ticks = append(ticks, plot.Tick{Value: v, Label: u.text(v)})
	}
	return ticks
}
