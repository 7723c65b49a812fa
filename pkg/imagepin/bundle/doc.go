// Package bundle writes and reads bundles. A bundle is a file with all content that the images of a lock need, for nodes that
// reach no registry.
//
// # Format
//
// A bundle is a tar archive, or a tar archive in zstd frames. It is an OCI image layout with these entries, in this order:
//
//   - oci-layout, and index.json with a descriptor for each name of each image in the order of the lock, then a descriptor of
//     the bundle's own manifest;
//   - the bundle's own manifest, whose artifact type is [ArtifactType], its configuration ([Description]), and its only layer,
//     the lock;
//   - all indexes, then all manifests, then all configurations, as published;
//   - all layers.
//
// Each blob occurs once. The order follows the order of the lock, of the manifests in an index and of the layers in a manifest,
// so a reader knows the name and the size of each entry before it comes, and compares each tar header with the only possible
// one. Equal locks, platforms and earlier locks give equal bytes.
//
// An index lists the manifests of all platforms. If the bundle is only for some platforms, its description lists the manifests
// that are absent. If it was written for nodes that already have an earlier lock, its description lists the layers that are
// omitted.
//
// In a compressed bundle each zstd frame has [FrameSize] bytes of the archive, the last one has the rest. So the end of each
// frame is a point from which an interrupted write continues. A skippable frame with a checksum of the file is at its end.
package bundle
