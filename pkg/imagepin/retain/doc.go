// Package retain keeps the content of pins on the node after image removal and image garbage collection.
//
// The pins and the images that are ready determine what is retained. Each manifest of a digest that a pin retains has
// one lease. The lease lists the manifest, its configuration, the layers, and each snapshot. [Retainer.Sync] updates
// the leases of a digest. It is called after a pin has changed, after an image has been recorded, and at a start for
// all digests. So a start repairs the state after a kill between two writes. If a pin and an image are written
// concurrently, the later Sync has both.
//
// max_retained_bytes is only checked when a pin that retains is about to be used for an image, see [Retainer.Reserve].
// If there is no room, that use fails, and the pin is not made or moved. Sync does not fail if there is no room. It
// logs the image, which is not retained until the next Sync with enough room.
package retain
