package gunzip

import (
	"bytes"
	"encoding/binary"
	"io"
)

const (
	// inputSize is the size of the buffer of compressed data, in bytes.
	inputSize = 64 << 10
	// refillSize is how much a refill reads, in bytes. It takes up to 7 of them.
	refillSize = 8
	// symbolInput is the maximum of what a step of the loop of symbols takes from the buffer, in bytes: two refills.
	symbolInput = 2 * (refillSize - 1)
	// padding is the number of zero bytes that follow the end of the source in the buffer, so that the last symbols are
	// decoded as the others. Whoever uses one of them has an unexpected end.
	padding = refillSize + symbolInput + refillSize
)

// input is the compressed data, as bits. The first one is the lowest bit of the first byte (RFC 1951, section 3.1.1).
type input struct {
	source io.Reader
	err    error // of the source, after the bytes in the buffer
	offset int64 // of the buffer's first byte in the stream
	buf    [inputSize + padding]byte
	pos    int // of the first byte whose bits are not in bits
	end    int // of the bytes of the source
	// The low n bits of bits are the next ones. What is above them are bits of the bytes at pos, or zero.
	bits uint64
	n    uint
}

// maxEmptyReads is how often the source may return nothing.
const maxEmptyReads = 100

// fill reads until the buffer has min more bytes after pos, or the source ends.
func (in *input) fill(min int) error {
	for empty := 0; in.end-in.pos < min && in.err == nil; {
		if drop := in.pos - int(in.n>>3); drop > 0 {
			copy(in.buf[:], in.buf[drop:in.end])
			in.offset += int64(drop)
			in.end, in.pos = in.end-drop, in.pos-drop
		}
		var n int
		n, in.err = in.source.Read(in.buf[in.end:inputSize])
		in.end += n
		if n > 0 {
			empty = 0
		} else if empty++; empty == maxEmptyReads && in.err == nil {
			in.err = io.ErrNoProgress
		}
		if in.err == io.EOF {
			clear(in.buf[in.end : in.end+padding])
		}
	}
	if in.end-in.pos < min && in.err != io.EOF {
		return in.err
	}
	return nil
}

// overrun reports whether bits after the end of the source were used. While it is false, the padding has enough for a
// refill.
func (in *input) overrun() bool { return 8*in.pos-int(in.n) > 8*in.end }

// waits reports whether the next fill may have to wait for the source.
func (in *input) waits() bool { return in.err == nil && in.end-in.pos < maxFill }

// refill makes bits have at least 56 bits. The buffer must have refillSize bytes at pos.
func (in *input) refill() {
	in.bits |= binary.LittleEndian.Uint64(in.buf[in.pos:]) << (in.n & 63)
	in.pos += int((63 - in.n) >> 3)
	in.n |= 56
}

// take returns the next n bits, which bits must have.
func (in *input) take(n uint) uint64 {
	v := in.bits & (1<<n - 1)
	in.skip(n)
	return v
}

func (in *input) skip(n uint) {
	in.bits >>= n
	in.n -= n
}

// align goes to the beginning of the next byte, and gives the bits after it back to the buffer.
func (in *input) align() {
	in.pos -= int(in.n >> 3)
	in.bits, in.n = 0, 0
}

// next returns the next n bytes, at most inputSize, after a call of align. They are valid until the next call.
func (in *input) next(n int) ([]byte, error) {
	if err := in.fill(n); err != nil {
		return nil, err
	}
	if in.end-in.pos < n {
		in.pos = in.end
		return nil, io.ErrUnexpectedEOF
	}
	in.pos += n
	return in.buf[in.pos-n : in.pos], nil
}

// until returns what the buffer has, at least one byte, up to and with the first byte that is last, after a call of align.
// It is valid until the next call.
func (in *input) until(last byte) ([]byte, error) {
	if ended, err := in.ended(); err != nil {
		return nil, err
	} else if ended {
		return nil, io.ErrUnexpectedEOF
	}
	b := in.buf[in.pos:in.end]
	if i := bytes.IndexByte(b, last); i >= 0 {
		b = b[:i+1]
	}
	in.pos += len(b)
	return b, nil
}

// drain reads the rest of the source, and returns its error, which is io.EOF after its end.
func (in *input) drain() error {
	for {
		in.pos = in.end
		if ended, err := in.ended(); err != nil {
			return err
		} else if ended {
			return io.EOF
		}
	}
}

// ended reports whether the source has ended, after a call of align.
func (in *input) ended() (bool, error) {
	err := in.fill(1)
	return in.pos == in.end, err
}
