// Package policy decides how a reference is treated: what a pull does ([Behavior]), whether and for which scope the
// first digest is pinned ([Consistency], [Scope]), and whether its content is retained. It performs no I/O.
//
// The first [Rule] that matches the reference applies, or else the defaults of the node. A pod may override behavior
// and consistency by annotations if its rule allows it.
package policy
