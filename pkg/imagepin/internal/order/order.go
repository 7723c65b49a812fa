// Package order adds to package cmp.
package order

// Bool is [cmp.Compare] for booleans: false is less than true.
func Bool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
