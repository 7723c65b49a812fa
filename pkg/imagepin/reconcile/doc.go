// Package reconcile makes labels, content and snapshots agree when imagepin starts, and when another tool changes an
// image record.
//
// It adopts images that were not pulled through imagepin (by stock containerd before an upgrade, with ctr, or
// preloaded). Adopted images get keys for the targets that they are unpacked for. Reconciling sends no requests to
// registries.
package reconcile
