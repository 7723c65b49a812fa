// Package pin keeps the digests that references are pinned to.
//
// A pin outlives its image. It is needed to run the same digest after the image was removed from the node, and to
// report that the digest was pinned after it was deleted from the registry. So pins are image records in a containerd
// namespace of their own, whose content does not have to exist. The record's name is the scope and the reference, its
// target is the descriptor from the registry, and its labels are the other fields.
//
// The content that a pin retains is held by leases in the CRI's namespace, one per manifest, see package retain.
package pin
