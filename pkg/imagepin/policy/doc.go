// Package policy says how a reference is treated: what a pull does
// ([Behavior]), whether the first digest sticks and for whom ([Consistency],
// [Scope]), and whether its content is kept. It performs no I/O.
//
// The defaults of the node hold unless a [Rule] matches the reference; the
// first that matches wins. A pod may change behavior and consistency by
// annotations where its rule allows that.
package policy
