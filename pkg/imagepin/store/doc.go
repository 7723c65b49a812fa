// Package store keeps the keys of the node: durably as labels on containerd's
// image records, and in memory as an index of them.
//
// The durable side has the shape that stock containerd gives an image, so that
// a rollback finds everything in its place. For an image of the node's own
// platform there are
//
//	<tag>            -> index
//	<repo>@<index>   -> index     carries the labels of the keys
//	<image ID>       -> index
//
// Where that record carries as many keys as it may (Config.KeysARecord), the
// records of further tags carry their own keys. For an image of another platform,
// which stock must never start by accident, there is no tag, and the index is left
// out:
//
//	<repo>@<manifest> -> manifest carries the labels of the keys
//	<image ID>        -> manifest
//
// An image that another tool put on the node gets the record that carries its
// keys when it is adopted, if it has none.
//
// What a record should look like follows from the entries alone (see
// desired), so that pulling, removing and adopting are one operation: change
// the set of entries, then bring the affected records into line.
package store
