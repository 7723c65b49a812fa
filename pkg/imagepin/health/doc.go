// Package health compares what is recorded on a node with what there is: the keys with the records, the content, its files
// and the snapshots. It repairs nothing, see package reconcile.
package health
