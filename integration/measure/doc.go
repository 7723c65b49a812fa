// Package measure has what the benchmarks have in common: the processor time, the memory and the files of processes, the
// disk, statistics, and tables.
package measure
