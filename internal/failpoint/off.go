//go:build !(failpoints && unix)

package failpoint

// Reach does nothing, because this binary has no failpoints.
func Reach(string) {}
