// Package measure has what the benchmarks have in common: the processor time and the memory of processes, statistics, and
// tables.
package measure
