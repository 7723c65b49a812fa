package gunzip

import "math/bits"

// maxCode is the maximum length of a Huffman code, in bits.
const maxCode = 15

// An entry of a table says all about the code whose bits are its index.
//
//	bits 0–7    bits to skip: of the code in this table, and the extra bits after it
//	bits 8–11   bits of the code in this table, without extra bits; of a subtable: the bits of its index
//	bit 13      ends the block
//	bit 14      more bits are needed, and a subtable has them
//	bit 15      set if bit 13 or 14 is set, or if there is no such code
//	bits 16–30  what extra bits are added to: a length or distance; a literal; of a subtable: where it begins
//	bit 31      set for a literal
type entry uint32

const (
	endOfBlock  entry = 1 << 13
	subtable    entry = 1 << 14
	exceptional entry = 1 << 15
	literal     entry = 1 << 31
	noCode            = exceptional
)

func (e entry) skip() uint     { return uint(e & 0xff) }
func (e entry) base() int      { return int(e >> 16) }
func (e entry) codeBits() uint { return uint(e>>8) & 15 }

// symbolEntry returns the entry of a symbol without the length of its code.
func symbolEntry(base, extra int) entry { return entry(base<<16 | extra) }

// withCode returns the entry of a symbol with a code of n bits.
func (e entry) withCode(n uint) entry { return e + entry(n<<8|n) }

// build builds a table of 2^width entries, and its subtables behind it. symbols are the entries of the symbols without the
// lengths of their codes, which are in lengths: 0 for a symbol that is not used. It reports whether the codes are complete.
// As in compress/flate, no code and one code of one bit are accepted too.
func build(table []entry, width uint, symbols []entry, lengths []uint8) bool {
	var count, next [maxCode + 1]int
	for _, n := range lengths {
		count[n]++
	}
	longest := maxCode
	for longest > 0 && count[longest] == 0 {
		longest--
	}
	first := table[:1<<width]
	for i := range first {
		first[i] = noCode
	}
	if longest == 0 {
		return true
	}
	code := 0
	for n := 1; n <= longest; n++ {
		code <<= 1
		next[n] = code
		code += count[n]
	}
	if code != 1<<longest && (code != 1 || longest != 1) {
		return false
	}
	subtableBits := max(longest, int(width)) - int(width)
	end := len(first)
	for symbol, length := range lengths {
		if length == 0 {
			continue
		}
		n := uint(length)
		reversed := int(bits.Reverse16(uint16(next[n])) >> (16 - n))
		next[n]++
		if n <= width {
			e := symbols[symbol].withCode(n)
			for i := reversed; i < len(first); i += 1 << n {
				first[i] = e
			}
			continue
		}
		head := &first[reversed&(len(first)-1)]
		if *head == noCode {
			*head = exceptional | subtable | entry(end<<16|subtableBits<<8) | entry(width)
			end += 1 << subtableBits
		}
		sub := table[head.base():][:1<<subtableBits]
		e := symbols[symbol].withCode(n - width)
		for i := reversed >> width; i < len(sub); i += 1 << (n - width) {
			sub[i] = e
		}
	}
	return true
}
