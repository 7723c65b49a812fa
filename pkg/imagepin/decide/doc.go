// Package decide decides which digest a reference resolves to for one call, and why.
//
// Six inputs decide, each in its own file:
//
//	policy    the rule for the reference, the pod's overrides, and the scope (policy.go)
//	lock      the digest that the node's lock has for the reference (lock.go)
//	cluster   the digest that the nodes of a cluster share (cluster.go)
//	pin       the digest that the reference is pinned to in the scope (pin.go)
//	node      the images on the node, and the credentials with a proof (node.go, proofs.go)
//	registry  the answer of the registry (registry.go)
//
// [Decider.Decide] combines them and returns a [Verdict], which package pull makes ready. TestMatrix tests the matrix
// of docs/digest-policy.md. [Decider.Look] is for a status: it writes nothing. The only state that the others write is pins.
package decide
