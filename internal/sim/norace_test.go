//go:build !race

package sim

// histories is how many are run where nothing else is asked for.
const histories = 2000
