// Package decide finds which digest a reference means for one call, and why.
//
// Four things decide, and each has a file:
//
//	policy    the rule for the reference, what the pod overrides, and the scope (policy.go)
//	pin       the digest that the scope is pinned to (pin.go)
//	node      what is on the node, and who may have it (node.go)
//	registry  what the registry answers (registry.go)
//
// decide.go puts them together. [Decider.Decide] returns a [Verdict], which package pull makes ready. The matrix of
// docs/digest-policy.md is the table of decide_test.go. Package decide writes pins and nothing else.
package decide
