// Package retain keeps the content of pins on the node after image removal and image garbage collection.
//
// The pins and the images that are ready determine what is retained. Each manifest of a digest that a pin retains has
// one lease. The lease lists the manifest, its configuration, the layers, and each snapshot. [Retainer.Sync] updates
// the leases of a digest after a pin has changed. [Retainer.SyncImage] updates the lease of an image after it has been
// recorded. [Retainer.SyncAll] updates all leases at a start. So a start repairs the state after a kill between two
// writes. If a pin and an image are written concurrently, the later update has both.
//
// Updates do not ask snapshotters, which may not respond: a lease can hold the snapshot of an image that is ready without
// that. A pin or an image in one snapshotter does not wait for another one.
//
// max_retained_bytes is only checked when a pin that retains is about to be used for an image, see [Retainer.Reserve].
// If there is no room, that use fails, and the pin is not made or moved. Updates do not fail if there is no room. They
// log the image, which is not retained until [Retainer.Retry] or another update finds enough room.
package retain
