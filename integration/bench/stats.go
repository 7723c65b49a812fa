package main

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/imagepin/imagepin/integration/measure"
)

// spread is a median with minimum and maximum.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(all []float64) spread {
	if len(all) == 0 {
		return spread{}
	}
	return spread{measure.Median(all), slices.Min(all), slices.Max(all)}
}

// result has the samples of a row. Samples with the same index are of the same repetition.
type result struct {
	row   row
	stock []float64
	ours  []float64
	fails error // why stock has no samples
}

// pairs applies a function to the samples of each repetition.
func (r result) pairs(of func(stock, ours float64) float64) []float64 {
	var all []float64
	for i := range min(len(r.stock), len(r.ours)) {
		all = append(all, of(r.stock[i], r.ours[i]))
	}
	return all
}

// ratios returns the ratios of imagepin to stock. The ratio of equal numbers is 1, also if both are 0.
func (r result) ratios() []float64 {
	return r.pairs(func(stock, ours float64) float64 {
		if stock == ours {
			return 1
		}
		return ours / stock
	})
}

// hasRatio reports whether the row is compared by a ratio: both sides have the number, and it is not compared by a
// difference.
func (r result) hasRatio() bool {
	return len(r.stock) > 0 && len(r.ours) > 0 && !r.row.gain && r.row.budget.kind != moreBudget
}

func (r result) differences() []float64 {
	return r.pairs(func(stock, ours float64) float64 { return ours - stock })
}

// budget is the limit of a row for imagepin. The zero value is no limit.
type budget struct {
	kind  budgetKind
	limit float64 // of the row's unit, or a ratio
}

type budgetKind int

const (
	noBudget budgetKind = iota
	// ratioBudget bounds the median of the ratios to stock.
	ratioBudget
	// moreBudget bounds the median of the differences to stock.
	moreBudget
	// absoluteBudget bounds the median of imagepin.
	absoluteBudget
)

func ratio(limit float64) budget { return budget{ratioBudget, limit} }

func more(limit float64) budget { return budget{moreBudget, limit} }

func atMost(limit float64) budget { return budget{absoluteBudget, limit} }

func (b budget) text(u unit) string {
	switch b.kind {
	case ratioBudget:
		return fmt.Sprintf("≤ %.2f ×", b.limit)
	case moreBudget:
		return "≤ +" + u.text(b.limit)
	case absoluteBudget:
		return "≤ " + u.text(b.limit)
	}
	return ""
}

// verdict returns "ok" or "missed". It returns "" if there is no budget, or no number to compare with.
func (r result) verdict() string {
	var value float64
	switch b := r.row.budget; {
	case b.kind == noBudget || len(r.ours) == 0:
		return ""
	case b.kind == absoluteBudget:
		value = measure.Median(r.ours)
	case len(r.stock) == 0:
		return ""
	case b.kind == moreBudget:
		value = measure.Median(r.differences())
	default:
		value = measure.Median(r.ratios())
	}
	return measure.Verdict(value, r.row.budget.limit)
}

// text formats a number with its unit.
func (u unit) text(v float64) string {
	switch u {
	case duration:
		return measure.Duration(time.Duration(v))
	case bytes_:
		return measure.Megabytes(v)
	}
	if v == math.Trunc(v) {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}
