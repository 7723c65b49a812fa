// Package gunzip decompresses gzip streams (RFC 1952).
//
// Most layers of images are compressed with gzip, and decompression is one thread. So it is often the longest part of a
// pull (see https://github.com/containerd/containerd/issues/13559). BenchmarkReader compares this package with the
// decompressor that containerd uses.
//
// What makes it fast: a refill of bits reads a word without a branch. Most codes need one look-up, because tables are
// large, and an entry has all that is needed of a symbol. Both buffers have a margin, so that one check for input and for
// room is enough for several symbols.
//
// A [Reader] accepts and rejects what compress/gzip does, see FuzzReader. It also rejects reserved flags, as RFC 1952
// requires and as containerd's decompressor does.
package gunzip
