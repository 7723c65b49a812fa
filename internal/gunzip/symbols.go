package gunzip

import (
	"encoding/binary"
	"io"
)

// maxDistanceBits is the length of the longest code of a distance with its extra bits.
const maxDistanceBits = maxCode + 13

const wordSize = 16 // bytes of a match that are copied at a time

// decodeSymbols decodes the symbols of a block until it ends, out is full, or the buffer may have less input than a symbol
// needs. Where the source has ended, the last symbols may be of the padding, which overrun reports afterwards.
//
// The state is in local variables, so that it stays in registers.
func (f *inflater) decodeSymbols() error {
	in, pos, bits, n := &f.in.buf, f.in.pos, f.in.bits, f.in.n
	limit := f.in.end - refillSize - symbolInput
	if f.in.err == io.EOF {
		limit = f.in.end + refillSize // from there on, bits of the padding are used
	}
	out, o, member := &f.out, f.outEnd, f.member
	lengths, distances := &f.codes.lengths, &f.codes.distances
	valid := true
	for pos < limit && o < outputSize-outputMargin {
		bits |= binary.LittleEndian.Uint64(in[pos:]) << (n & 63)
		pos += int((63 - n) >> 3)
		n |= 56
		e := lengths[bits&(1<<lengthWidth-1)]
		// Two literals of the table, and a third one or a length with its extra bits, have at most 2 × 11 + 20 bits.
		if e&literal != 0 {
			bits, n = bits>>(e&63), n-e.skip()
			out[o] = byte(e >> 16)
			o++
			if e = lengths[bits&(1<<lengthWidth-1)]; e&literal != 0 {
				bits, n = bits>>(e&63), n-e.skip()
				out[o] = byte(e >> 16)
				o++
				e = lengths[bits&(1<<lengthWidth-1)]
			}
		}
		if e&subtable != 0 {
			bits, n = bits>>(e&63), n-e.skip()
			e = lengths[e.base()+int(bits&(1<<e.codeBits()-1))]
		}
		code := bits
		bits, n = bits>>(e&63), n-e.skip()
		if e&literal != 0 {
			out[o] = byte(e >> 16)
			o++
			continue
		}
		if e&exceptional != 0 {
			f.symbols = e&endOfBlock == 0
			valid = !f.symbols
			break
		}
		length := e.base() + int(code&(1<<(e&63)-1)>>e.codeBits())

		if n < maxDistanceBits {
			bits |= binary.LittleEndian.Uint64(in[pos:]) << (n & 63)
			pos += int((63 - n) >> 3)
			n |= 56
		}
		e = distances[bits&(1<<distanceWidth-1)]
		if e&subtable != 0 {
			bits, n = bits>>(e&63), n-e.skip()
			e = distances[e.base()+int(bits&(1<<e.codeBits()-1))]
		}
		distance := e.base() + int(bits&(1<<(e&63)-1)>>e.codeBits())
		bits, n = bits>>(e&63), n-e.skip()
		from, end := o-distance, o+length
		if e&exceptional != 0 || from < member {
			valid = false
			break
		}
		if length > distance && distance < 3*wordSize { // a word would be loaded that has just been stored in parts
			for o < end {
				o += copy(out[o:min(end, 2*o-from)], out[from:o])
			}
			continue
		}
		for o < end {
			*(*[wordSize]byte)(out[o:]) = *(*[wordSize]byte)(out[from:])
			o, from = o+wordSize, from+wordSize
		}
		o = end
	}
	f.in.pos, f.in.bits, f.in.n, f.outEnd = pos, bits, n, o
	if !valid {
		return f.corrupt()
	}
	return nil
}
