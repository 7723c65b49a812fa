package imagepin_test

import (
	"math"
	"testing"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestAddSize adds sizes that an image can declare. No size reduces a total, and no total overflows.
func TestAddSize(t *testing.T) {
	for _, c := range []struct{ total, size, want int64 }{
		{0, 0, 0},
		{1, 2, 3},
		{1, -1, 1},
		{1, math.MinInt64, 1},
		{1, math.MaxInt64, math.MaxInt64},
		{math.MaxInt64, math.MaxInt64, math.MaxInt64},
		{math.MaxInt64 - 1, 1, math.MaxInt64},
	} {
		if got := imagepin.AddSize(c.total, c.size); got != c.want {
			t.Errorf("AddSize(%d, %d): got %d, want %d", c.total, c.size, got, c.want)
		}
	}
}
