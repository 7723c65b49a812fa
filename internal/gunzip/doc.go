// Package gunzip decompresses gzip streams (RFC 1952).
//
// Most layers of images are compressed with gzip, and decompression is one thread. So it is often the longest part of a
// pull (see https://github.com/containerd/containerd/issues/13559). BenchmarkReader compares this package with the
// decompressor that containerd uses.
//
// What makes it fast: a refill of bits reads a word without a branch. Most codes need one lookup, because tables are
// large, and an entry has all that is needed of a symbol. Both buffers have a margin, so that one check for input and for
// room is enough for several symbols.
//
// A [Reader] accepts what any of compress/gzip, containerd's decompressor, pigz and igzip accepts, see TestPeers: a node
// may have pulled an image with any of them. The digest of the decompressed layer is compared with the image's
// configuration.
package gunzip
