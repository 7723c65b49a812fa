package gunzip

import "sync"

const (
	// lengthWidth and distanceWidth are the widths of the tables. Longer codes need a second lookup.
	lengthWidth   = 11
	distanceWidth = 8
	// maxLengths and maxDistances are how many symbols a block can have. The fixed codes have more, which are not valid.
	maxLengths     = 286
	maxDistances   = 30
	fixedLengths   = 288
	fixedDistances = 32
	// At least two codes begin with the bits of an entry that has a subtable.
	lengthEntries   = 1<<lengthWidth + maxLengths/2<<(maxCode-lengthWidth)
	distanceEntries = 1<<distanceWidth + maxDistances/2<<(maxCode-distanceWidth)
)

// tables are the tables of the codes of a block.
type tables struct {
	lengths   [lengthEntries]entry // and literals
	distances [distanceEntries]entry
}

// lengthSymbols and distanceSymbols are the symbols of RFC 1951, section 3.2.5.
var (
	lengthSymbols   = newLengthSymbols()
	distanceSymbols = newDistanceSymbols()
)

func newLengthSymbols() (s [fixedLengths]entry) {
	for i := range 256 {
		s[i] = literal | symbolEntry(i, 0)
	}
	s[256] = exceptional | endOfBlock
	length := 3
	for i := 257; i < 285; i++ {
		extra := max(0, (i-261)/4)
		s[i] = symbolEntry(length, extra)
		length += 1 << extra
	}
	s[285] = symbolEntry(longestMatch, 0)
	s[286], s[287] = noCode, noCode
	return s
}

func newDistanceSymbols() (s [fixedDistances]entry) {
	distance := 1
	for i := range maxDistances {
		extra := max(0, i/2-1)
		s[i] = symbolEntry(distance, extra)
		distance += 1 << extra
	}
	s[30], s[31] = noCode, noCode
	return s
}

// fixedTables returns the tables of RFC 1951, section 3.2.6.
var fixedTables = sync.OnceValue(func() *tables {
	t := &tables{}
	var lengths [fixedLengths]uint8
	for i := range lengths {
		switch {
		case i < 144:
			lengths[i] = 8
		case i < 256:
			lengths[i] = 9
		case i < 280:
			lengths[i] = 7
		default:
			lengths[i] = 8
		}
	}
	var distances [fixedDistances]uint8
	for i := range distances {
		distances[i] = 5
	}
	build(t.lengths[:], lengthWidth, lengthSymbols[:], lengths[:])
	build(t.distances[:], distanceWidth, distanceSymbols[:], distances[:])
	return t
})

const (
	lengthCodes = 19 // symbols of the code of code lengths
	codeWidth   = 7  // and its longest code, in bits
	repeat      = 16 // its first symbol that is not a length
)

// codeOrder is the order of the lengths of the code of code lengths (RFC 1951, section 3.2.7).
var codeOrder = [lengthCodes]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

var codeSymbols = func() (s [lengthCodes]entry) {
	for i := range s {
		s[i] = symbolEntry(i, 0)
	}
	return s
}()

// readCodes reads the codes of a block. The buffer has all of them, unless the source ends before, which the caller finds
// with overrun.
func (f *inflater) readCodes() error {
	lengths := int(f.in.take(5)) + 257
	distances := int(f.in.take(5)) + 1
	codes := int(f.in.take(4)) + 4
	if lengths > maxLengths || distances > maxDistances {
		return f.corrupt()
	}
	var codeLengths [lengthCodes]uint8
	for _, symbol := range codeOrder[:codes] {
		if f.in.overrun() {
			return nil
		}
		f.in.refill()
		codeLengths[symbol] = uint8(f.in.take(3))
	}
	var table [1 << codeWidth]entry
	if !build(table[:], codeWidth, codeSymbols[:], codeLengths[:]) {
		return f.corrupt()
	}
	var all [maxLengths + maxDistances]uint8
	for i, n := 0, lengths+distances; i < n; {
		if f.in.overrun() {
			return nil
		}
		f.in.refill()
		e := table[f.in.bits&(1<<codeWidth-1)]
		f.in.skip(e.skip())
		if e&exceptional != 0 {
			return f.corrupt()
		}
		if e.base() < repeat {
			all[i] = uint8(e.base())
			i++
			continue
		}
		var length uint8
		var times int
		switch e.base() {
		case repeat:
			if i == 0 {
				return f.corrupt()
			}
			length, times = all[i-1], 3+int(f.in.take(2))
		case repeat + 1:
			times = 3 + int(f.in.take(3))
		case repeat + 2:
			times = 11 + int(f.in.take(7))
		}
		if i+times > n {
			return f.corrupt()
		}
		for range times {
			all[i] = length
			i++
		}
	}
	if !build(f.dynamic.lengths[:], lengthWidth, lengthSymbols[:], all[:lengths]) ||
		!build(f.dynamic.distances[:], distanceWidth, distanceSymbols[:], all[lengths:lengths+distances]) {
		return f.corrupt()
	}
	return nil
}
