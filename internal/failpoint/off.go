//go:build !(failpoints && unix)

package failpoint

// Reach does nothing: this binary has no failpoints.
func Reach(string) {}
