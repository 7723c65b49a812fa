// Package gunzip decompresses gzip streams (RFC 1952), at about twice the speed of other decompressors in Go.
//
// Most layers of images are compressed with gzip, and decompression is one thread. So it is often the longest part of a
// pull (see https://github.com/containerd/containerd/issues/13559).
//
// What makes it fast: a refill of bits reads a word without a branch. Most codes need one look-up, because tables are
// large, and an entry has all that is needed of a symbol. Both buffers have a margin, so that one check for input and for
// room is enough for several symbols.
//
// A [Reader] accepts and rejects what compress/gzip does, see FuzzReader.
package gunzip
