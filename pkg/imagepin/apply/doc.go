// Package apply applies locks and bundles to a node: it verifies them, makes the images ready for the targets of the node, and
// then switches all pins of the lock in one step.
package apply
