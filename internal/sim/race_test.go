//go:build race

package sim

// histories is the default number of histories. It is lower because the race detector is slow.
const histories = 100
