// Package blobtable keeps many digests in little memory: a map of digests needs several times as much, and each digest in it is a
// text of its own.
package blobtable

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"iter"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Table has digests of SHA-256 and SHA-512, each once, with a value. It needs about 45 bytes for a digest of SHA-256 beside the value.
// Its zero value is empty. It is safe for concurrent reading.
type Table[V any] struct {
	raw   []byte // of all digests, one after the other
	rows  []row[V]
	slots []uint32 // numbers of rows plus one, by hash
	seed  maphash.Seed
}

type row[V any] struct {
	end   uint32 // of the digest in raw
	value V
}

// The sizes of digests in bytes.
const (
	size256 = 32
	size512 = 64
)

// Len returns the number of digests.
func (t *Table[V]) Len() int { return len(t.rows) }

// At returns the value of a digest by its number.
func (t *Table[V]) At(n int) *V { return &t.rows[n].value }

// Digest returns a digest by its number.
func (t *Table[V]) Digest(n int) digest.Digest {
	raw := t.rawOf(n)
	algorithm := digest.SHA256
	if len(raw) == size512 {
		algorithm = digest.SHA512
	}
	return digest.NewDigestFromEncoded(algorithm, hex.EncodeToString(raw))
}

// Find returns the number of a digest.
func (t *Table[V]) Find(d digest.Digest) (n int, ok bool) {
	var buffer [size512]byte
	raw, ok := decode(d, &buffer)
	if !ok || len(t.rows) == 0 {
		return 0, false
	}
	n = int(t.slots[t.slot(raw)]) - 1
	return n, n >= 0
}

// Has reports whether the table has a digest.
func (t *Table[V]) Has(d digest.Digest) bool {
	_, ok := t.Find(d)
	return ok
}

// Add adds a digest, if it is new, and returns its number. It fails with ErrInvalidArgument if it is not one of SHA-256 or SHA-512.
func (t *Table[V]) Add(d digest.Digest) (n int, added bool, _ error) {
	var buffer [size512]byte
	raw, ok := decode(d, &buffer)
	if !ok {
		return 0, false, fmt.Errorf("digest %.80q: want sha256 or sha512: %w", string(d), errdefs.ErrInvalidArgument)
	}
	if len(t.slots) < 2*(len(t.rows)+1) {
		t.grow()
	}
	slot := t.slot(raw)
	if n = int(t.slots[slot]) - 1; n >= 0 {
		return n, false, nil
	}
	t.raw = append(t.raw, raw...)
	t.rows = append(t.rows, row[V]{end: uint32(len(t.raw))})
	t.slots[slot] = uint32(len(t.rows))
	return len(t.rows) - 1, true, nil
}

// All returns all digests in the order in which they were added.
func (t *Table[V]) All() iter.Seq[digest.Digest] {
	return func(yield func(digest.Digest) bool) {
		for n := range t.rows {
			if !yield(t.Digest(n)) {
				return
			}
		}
	}
}

func (t *Table[V]) rawOf(n int) []byte {
	begin := uint32(0)
	if n > 0 {
		begin = t.rows[n-1].end
	}
	return t.raw[begin:t.rows[n].end]
}

// slot returns the slot of a digest, or the empty one for it.
func (t *Table[V]) slot(raw []byte) int {
	mask := len(t.slots) - 1
	for at := int(maphash.Bytes(t.seed, raw)) & mask; ; at = (at + 1) & mask {
		if n := int(t.slots[at]) - 1; n < 0 || bytes.Equal(t.rawOf(n), raw) {
			return at
		}
	}
}

// grow doubles the slots. Their number is a power of two.
func (t *Table[V]) grow() {
	if len(t.slots) == 0 {
		t.seed = maphash.MakeSeed() // who chose the digests cannot choose their slots
	}
	t.slots = make([]uint32, max(2*len(t.slots), 64))
	for n := range t.rows {
		t.slots[t.slot(t.rawOf(n))] = uint32(n + 1)
	}
}

// decode returns the bytes of a digest.
func decode(d digest.Digest, buffer *[size512]byte) ([]byte, bool) {
	const prefix256, prefix512 = "sha256:", "sha512:"
	switch {
	case len(d) == len(prefix256)+2*size256 && d[:len(prefix256)] == prefix256:
	case len(d) == len(prefix512)+2*size512 && d[:len(prefix512)] == prefix512:
	default:
		return nil, false
	}
	for _, c := range d[len(prefix256):] {
		if 'A' <= c && c <= 'F' {
			return nil, false // hex.Decode accepts it, but it is not a digest
		}
	}
	n, err := hex.Decode(buffer[:], []byte(d[len(prefix256):]))
	return buffer[:n], err == nil
}
