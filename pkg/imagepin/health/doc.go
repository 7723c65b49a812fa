// Package health compares the keys of a node with its image records, content, files and snapshots. It repairs nothing,
// see package reconcile.
package health
