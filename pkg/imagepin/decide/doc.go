// Package decide decides which digest a reference resolves to for one call, and why.
//
// Four inputs decide:
//
//	policy       the rule for the reference, and the pod's overrides (policy.go)
//	authorities  the digest that the reference is pinned to: by the node's lock, in the cluster, or on the node (authority.go)
//	node         the images on the node, and the credentials with a proof (node.go, proofs.go)
//	registry     the answer of the registry (registry.go)
//
// A call enters four times at most. [Decider.Ask] asks the authorities once: the [Request] carries their answer. [Decider.Decide]
// returns a [Verdict], which package pull makes ready. [Decider.Claim] makes the pin of a first use, and [Decider.Current] checks the
// verdict once more where it is recorded. A container that is created without a pull has [Decider.Use] and [Decider.Confirm]. TestMatrix
// tests the matrix of docs/digest-policy.md. [Decider.Look] is for a status: it writes nothing. The only state that the others write is
// pins.
package decide
