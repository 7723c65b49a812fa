// Package order has what package cmp lacks.
package order

// Bool compares as [cmp.Compare] does; true is the greater.
func Bool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
