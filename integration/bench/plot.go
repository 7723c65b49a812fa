package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"

	"github.com/imagepin/imagepin/integration/measure"
)

// plot shows how a number grows with the number of images, for both sides.
type plot struct {
	title  string
	unit   unit
	points []point
}

// point has the samples for one number of images.
type point struct {
	x           int
	stock, ours []float64
}

// plots returns the plots of all curves that have more than one point.
func plots(results []*result) []plot {
	var all []plot
	for _, r := range results {
		if r.row.curve == "" {
			continue
		}
		i := slices.IndexFunc(all, func(p plot) bool { return p.title == r.row.curve })
		if i < 0 {
			all = append(all, plot{title: r.row.curve, unit: r.row.unit})
			i = len(all) - 1
		}
		all[i].points = append(all[i].points, point{r.row.x, finite(r.stock), finite(r.ours)})
	}
	return slices.DeleteFunc(all, func(p plot) bool { return len(p.points) < 2 || len(p.values()) == 0 })
}

// finite returns the finite numbers. JSON and plots cannot have others.
func finite(all []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(all), func(v float64) bool { return math.IsInf(v, 0) || math.IsNaN(v) })
}

// values returns all positive values, because both axes are logarithmic.
func (p plot) values() []float64 {
	var all []float64
	for _, at := range p.points {
		all = append(all, at.stock...)
		all = append(all, at.ours...)
	}
	return slices.DeleteFunc(all, func(v float64) bool { return v <= 0 })
}

// The dimensions of a plot, in pixels.
const (
	width, height            = 480, 280
	left, right, top, bottom = 78, 16, 34, 42
)

// style is legible on light and on dark backgrounds.
const style = `
text { font: 12px system-ui, sans-serif; fill: #444 }
.title { font-size: 14px; font-weight: 600 }
.grid { stroke: #8885; stroke-width: 1 }
.stock { stroke: #d9822b; fill: #d9822b }
.ours { stroke: #2b7fd9; fill: #2b7fd9 }
.line { fill: none; stroke-width: 2 }
text.stock, text.ours { stroke: none; font-weight: 600 }
@media (prefers-color-scheme: dark) { text { fill: #ccc } }
`

// svg draws the plot, with medians as lines, and bars from minimum to maximum.
func (p plot) svg() []byte {
	values := p.values()
	lowX, highX := float64(p.points[0].x), float64(p.points[len(p.points)-1].x)
	// Whole decades, so that plots can be compared.
	lowY := math.Pow(10, math.Floor(math.Log10(slices.Min(values))))
	highY := math.Pow(10, math.Ceil(math.Log10(slices.Max(values))))
	if lowY == highY {
		highY *= 10
	}
	x := func(v float64) float64 { return left + (width-left-right)*math.Log(v/lowX)/math.Log(highX/lowX) }
	y := func(v float64) float64 {
		return height - bottom - (height-top-bottom)*math.Log(v/lowY)/math.Log(highY/lowY)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img"><style>%s</style>`+"\n", width, height, width, height, style)
	fmt.Fprintf(&b, `<text class="title" x="%d" y="18">%s</text>`+"\n", left, html.EscapeString(p.title))
	for v := lowY; v <= highY*1.001; v *= 10 {
		fmt.Fprintf(&b, `<path class="grid" d="M%d %.1fH%d"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			left, y(v), width-right, left-6, y(v)+4, p.unit.text(v))
	}
	for _, at := range p.points {
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f %dV%d"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			x(float64(at.x)), top, height-bottom, x(float64(at.x)), height-bottom+16, measure.Thousands(at.x))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">images on the node</text>`+"\n", (left+width-right)/2, height-6)
	legend := width - right
	for _, side := range []struct {
		class, name string
		of          func(point) []float64
	}{
		{"ours", "imagepin", func(at point) []float64 { return at.ours }},
		{"stock", "stock", func(at point) []float64 { return at.stock }},
	} {
		var line []string
		for _, at := range p.points {
			s := spreadOf(side.of(at))
			if s.Min <= 0 {
				continue
			}
			line = append(line, fmt.Sprintf("%.1f,%.1f", x(float64(at.x)), y(s.Median)))
			fmt.Fprintf(&b, `<path class="%s" d="M%.1f %.1fV%.1f" stroke-width="1.5"/><circle class="%s" cx="%.1f" cy="%.1f" r="3"/>`+"\n",
				side.class, x(float64(at.x)), y(s.Min), y(s.Max), side.class, x(float64(at.x)), y(s.Median))
		}
		if len(line) == 0 {
			continue
		}
		fmt.Fprintf(&b, `<polyline class="%s line" points="%s"/>`+"\n", side.class, strings.Join(line, " "))
		fmt.Fprintf(&b, `<text class="%s" x="%d" y="18" text-anchor="end">%s</text>`+"\n", side.class, legend, side.name)
		legend -= 80
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
