//go:build !race

package sim

// histories is the default number of histories.
const histories = 2000
