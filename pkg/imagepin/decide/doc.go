// Package decide decides which digest a reference resolves to for one call, and why.
//
// Four inputs decide, each in its own file:
//
//	policy    the rule for the reference, the pod's overrides, and the scope (policy.go)
//	pin       the digest that the reference is pinned to in the scope (pin.go)
//	node      the images on the node, and the credentials with a proof (node.go, proofs.go)
//	registry  the answer of the registry (registry.go)
//
// [Decider.Decide] combines them and returns a [Verdict], which package pull makes ready. TestMatrix tests the matrix
// of docs/digest-policy.md. The only state that package decide writes is pins.
package decide
