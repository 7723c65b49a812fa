package gunzip

import (
	"compress/flate"
	"io"
)

const (
	// historySize is the maximum of a distance, in bytes.
	historySize = 32 << 10
	// longestMatch is the maximum of a length, in bytes.
	longestMatch = 258
	// outputMargin is the maximum of what the loop of symbols writes after it has looked for room: two literals and a
	// match, which is copied in words.
	outputMargin = 2 + longestMatch + wordSize
	// outputSize is the size of the buffer of decompressed data, in bytes.
	outputSize = 128 << 10
	// dynamicHeader is the maximum of the header of a block with its own codes, in bytes: 14 bits, 19 code lengths of 3
	// bits, and 316 codes of 7 bits with up to 7 extra bits.
	dynamicHeader = (14 + 19*3 + 316*(7+7) + 7) / 8
	// maxFill is the largest argument of input.fill within a block.
	maxFill = dynamicHeader + padding
)

// The types of blocks (RFC 1951, section 3.2.3).
const (
	storedBlock = iota
	fixedBlock
	dynamicBlock
)

// inflater decompresses deflated data (RFC 1951).
type inflater struct {
	in  input
	out [outputSize]byte
	// outEnd is the end of the data in out. The data from member on is of this member.
	outEnd, member int

	final   bool // no block follows
	stored  int  // the rest of a stored block, in bytes
	symbols bool // symbols of a block follow
	codes   *tables
	dynamic tables
}

// restart begins a member: no distance reaches into the one before.
func (f *inflater) restart() { f.member, f.final = f.outEnd, false }

// makeRoom drops what no distance reaches if out is full, and returns outEnd.
func (f *inflater) makeRoom() int {
	if drop := f.outEnd - historySize; f.outEnd >= outputSize-outputMargin {
		copy(f.out[:], f.out[drop:f.outEnd])
		f.outEnd, f.member = historySize, max(0, f.member-drop)
	}
	return f.outEnd
}

// inflate decompresses until out is full, or there is some output and the next step may wait for input. It returns io.EOF
// after the last block. If the source ends before, it drops what it has decompressed.
func (f *inflater) inflate() error {
	for begin := f.outEnd; f.outEnd < outputSize-outputMargin; {
		var err error
		switch {
		case f.stored > 0:
			err = f.copyStored()
		case f.symbols:
			if err = f.in.fill(padding); err == nil {
				err = f.decodeSymbols()
			}
		case f.final:
			f.in.align()
			return io.EOF
		default:
			err = f.blockHeader()
		}
		if f.in.overrun() { // the last of what was decoded, or what is not valid, is of the padding
			f.outEnd, err = begin, io.ErrUnexpectedEOF
		}
		if err != nil || f.outEnd > begin && f.in.waits() {
			return err
		}
	}
	return nil
}

// corrupt returns the error for data that is not valid.
func (f *inflater) corrupt() error {
	return flate.CorruptInputError(f.in.offset + int64(f.in.pos) - int64(f.in.n>>3))
}

func (f *inflater) blockHeader() error {
	if err := f.in.fill(maxFill); err != nil {
		return err
	}
	f.in.refill()
	f.final = f.in.take(1) != 0
	switch f.in.take(2) {
	case storedBlock:
		return f.storedHeader()
	case fixedBlock:
		f.symbols, f.codes = true, fixedTables()
		return nil
	case dynamicBlock:
		f.symbols, f.codes = true, &f.dynamic
		return f.readCodes()
	}
	return f.corrupt()
}

// storedHeader reads the length of a stored block.
func (f *inflater) storedHeader() error {
	if f.in.overrun() {
		return nil
	}
	f.in.align()
	b, err := f.in.next(4)
	if err != nil {
		return err
	}
	length, complement := int(b[0])|int(b[1])<<8, int(b[2])|int(b[3])<<8
	if length^complement != 0xffff {
		return f.corrupt()
	}
	f.stored = length
	return nil
}

// copyStored copies a part of a stored block.
func (f *inflater) copyStored() error {
	if err := f.in.fill(1); err != nil {
		return err
	}
	if f.in.pos == f.in.end {
		return io.ErrUnexpectedEOF
	}
	n := min(f.stored, f.in.end-f.in.pos)
	n = copy(f.out[f.outEnd:outputSize-outputMargin], f.in.buf[f.in.pos:][:n])
	f.in.pos += n
	f.outEnd += n
	f.stored -= n
	return nil
}
