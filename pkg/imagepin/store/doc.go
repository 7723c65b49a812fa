// Package store keeps the keys of the node in labels on containerd's image records, and in an index in memory.
//
// The records have the shape that stock containerd gives an image, so that stock containerd finds all of them after a
// rollback. An image of the node's own platform has these records:
//
//	<tag>            -> index
//	<repo>@<index>   -> index     carries the labels of the keys
//	<image ID>       -> index
//
// The record of a digest carries at most Config.KeysARecord keys. The records of further tags carry their own keys.
//
// Stock containerd must never start an image of another platform by accident. So such an image has no record of a tag,
// and its records do not target the index:
//
//	<repo>@<manifest> -> manifest carries the labels of the keys
//	<image ID>        -> manifest
//
// Adoption of an image that another tool put on the node creates the record that carries its keys, if it does not
// exist.
//
// The desired state of a record follows from the entries alone (see desired). So pull, removal and adoption are one
// operation: change the set of entries, then update the affected records.
package store
