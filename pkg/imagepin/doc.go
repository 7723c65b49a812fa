// Package imagepin defines the types that all other packages share: the key of an image, its label on an image record,
// and the errors that a caller can get. It performs no I/O.
//
// # Keys
//
// An image is stored on a node once per key. A key is
//
//	(reference, platform, snapshotter)
//
// A key is ready if the image that the reference resolves to is unpacked for the platform in the snapshotter. A
// container can then start from it at once. The platform and the snapshotter together are the target of a CRI call.
// Package runtimeplatform derives the target from the runtime handler. [ParseReference] normalizes references as
// containerd's CRI does.
//
// # Labels
//
// A ready key is stored as one label on the containerd image record that keeps its content alive, see [Entry]. Keys
// have no other durable state. [EncodeKeyLabel] and [DecodeKeyLabel] convert between an entry and its label.
//
// # Errors
//
// An [Error] has a [Reason], which an operator can search for in logs and documentation, and a class of package
// github.com/containerd/errdefs, which decides the gRPC status of a reply.
package imagepin
