//go:build race

package sim

// histories is the default number of histories. It is lower because the race detector is slow, and finds little: one
// goroutine runs at a time. make test-sim runs thousands without it.
const histories = 100
