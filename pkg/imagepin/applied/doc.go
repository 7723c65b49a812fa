// Package applied stores the lock that a node has applied, and the lock before it. Both are one blob, which one image record
// in the namespace of pins targets, so that an update of that record replaces all pins of the lock in one step.
package applied
