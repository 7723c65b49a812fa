// Package lock reads, writes and compares locks. A lock is a Carvel ImagesLock
// (https://carvel.dev/imgpkg/docs/latest/resources/#imageslock): it names the digest of each image reference. This package
// does no I/O.
package lock
