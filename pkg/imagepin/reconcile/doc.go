// Package reconcile makes labels, content and snapshots agree: when imagepin
// starts, and whenever another tool changes an image record.
//
// Images that nobody pulled through imagepin (with stock containerd before an
// upgrade, with ctr, or preloaded) are adopted: they get keys for the targets
// they are unpacked for. Nothing of this asks a registry.
package reconcile
