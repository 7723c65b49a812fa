package imagepin

import "math"

// AddSize adds a size to a total, in bytes. A negative size counts as zero, and the result is never more than
// math.MaxInt64. An image declares the sizes of its parts, so neither is known to be correct.
func AddSize(total, size int64) int64 {
	size = max(size, 0)
	if size > math.MaxInt64-total {
		return math.MaxInt64
	}
	return total + size
}
