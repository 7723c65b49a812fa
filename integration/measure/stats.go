package measure

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Median returns the median of numbers, or 0 if there are none.
func Median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(all))
	m := len(s) / 2
	if len(s)%2 == 1 {
		return s[m]
	}
	return (s[m-1] + s[m]) / 2
}

// Quantile returns the smallest of the numbers that is at least as large as the fraction q of them (0 < q ≤ 1), or 0 if
// there are none.
func Quantile(all []float64, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(all))
	return s[max(0, int(math.Ceil(q*float64(len(s))))-1)]
}

// Verdict returns "ok" if a value is within its budget, or "missed".
func Verdict(value, limit float64) string {
	if value <= limit {
		return "ok"
	}
	return "missed"
}

// Duration formats a duration with about three significant digits.
func Duration(d time.Duration) string {
	switch abs := d.Abs(); {
	case abs >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case abs >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case abs >= 100*time.Millisecond:
		return fmt.Sprintf("%.0f ms", float64(d)/1e6)
	case abs >= 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/1e6)
	case abs == 0:
		return "0"
	}
	return fmt.Sprintf("%.2f ms", float64(d)/1e6)
}

// Megabytes formats a number of bytes.
func Megabytes(n float64) string { return fmt.Sprintf("%.1f MB", n/1e6) }

// Thousands formats a number with commas.
func Thousands(n int) string {
	if n < 1_000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", Thousands(n/1_000), n%1_000)
}
