// Package retain keeps the content of pins on the node, through image removal and image garbage collection.
//
// What is retained follows from the pins and from the images that are ready: for each digest that a pin retains, one
// lease for each manifest lists the manifest, its configuration, the layers, and each snapshot. [Retainer.Sync] brings
// the leases of a digest into line. It is called after a pin has changed, after an image has been recorded, and, for
// all digests, at a start: so a kill between two writes is repaired, and of a pin and an image that are written at one
// time, the later one sees the other.
//
// max_retained_bytes is checked in one place: where a pin that retains is about to be used for an image, see
// [Retainer.Reserve]. Without room that use fails, and no pin is made or moved. Sync never fails for want of room: what
// has none is logged, and stays without until the next Sync.
package retain
