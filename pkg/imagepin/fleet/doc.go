// Package fleet is the control service of locks and bundles: which calls apply a lock, end that, and report what is locked.
package fleet
