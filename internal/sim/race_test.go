//go:build race

package sim

// histories is how many are run where nothing else is asked for: the race
// detector takes its time.
const histories = 500
