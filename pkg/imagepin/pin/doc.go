// Package pin keeps the node's decisions on which digest a reference means.
//
// A pin outlives the image it speaks of: it says what to run when the image is
// gone from the node, and that it was pinned when it is gone from the registry.
// So pins are image records in a containerd namespace of their own, whose
// content need not be there: the record's name is scope and reference, its
// target the descriptor that the registry gave, its labels the facts.
//
// What a pin retains is held in the CRI's namespace by one lease per manifest,
// see [Retainer].
package pin
