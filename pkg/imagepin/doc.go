// Package imagepin holds the vocabulary that all other packages share: what a
// key is, how it is written into a label of an image record, and the errors a
// caller can meet. It performs no I/O.
//
// An image is kept on a node once per key. A key is
//
//	(reference, platform, snapshotter)
//
// and says: "this reference, for this platform, is unpacked in this
// snapshotter and can be started at once". The platform and the snapshotter
// together are the target of a CRI call; package runtimeplatform derives them
// from the runtime handler.
//
// A key that is ready is written as one label on the containerd image record
// that keeps its content alive, see [Entry]. There is no other durable state.
package imagepin
