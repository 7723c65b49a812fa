package gunzip

import (
	"bytes"
	"math/bits"
	"math/rand/v2"
	"testing"
)

// TestGenerated compares with compress/flate what no compressor writes: random blocks with random codes, up to the longest.
// It also cuts and damages each stream.
func TestGenerated(t *testing.T) {
	for seed := range uint64(150) {
		g := &generator{rnd: rand.New(rand.NewPCG(seed, 0))}
		blocks := 1 + g.rnd.IntN(8)
		for i := range blocks {
			g.block(i == blocks-1)
		}
		g.align()
		deflated(t, g.data)
		deflated(t, g.data[:g.rnd.IntN(len(g.data))])
		damaged := bytes.Clone(g.data)
		damaged[g.rnd.IntN(len(damaged))] ^= 1 << g.rnd.IntN(8)
		deflated(t, damaged)
	}
}

// generator writes deflated data.
type generator struct {
	rnd  *rand.Rand
	data []byte
	bits uint64
	n    uint
	size int // of the data when it is decompressed
}

func (g *generator) put(v, n int) {
	g.bits |= uint64(v) << g.n
	for g.n += uint(n); g.n >= 8; g.n -= 8 {
		g.data = append(g.data, byte(g.bits))
		g.bits >>= 8
	}
}

func (g *generator) align() {
	if g.n > 0 {
		g.put(0, int(8-g.n))
	}
}

func (g *generator) block(final bool) {
	g.put(map[bool]int{true: 1}[final], 1)
	kind := g.rnd.IntN(3)
	g.put(kind, 2)
	switch kind {
	case storedBlock:
		g.align()
		n := g.rnd.IntN(70_000) & 0xffff
		g.put(n, 16)
		g.put(n^0xffff, 16)
		for range n {
			g.put(g.rnd.IntN(256), 8)
		}
		g.size += n
	case fixedBlock:
		lengths := make([]uint8, fixedLengths)
		for i := range lengths {
			lengths[i] = map[bool]uint8{true: 8, false: 9}[i < 144 || i >= 280]
			if i >= 256 && i < 280 {
				lengths[i] = 7
			}
		}
		g.symbols(lengths, bytes.Repeat([]byte{5}, fixedDistances))
	case dynamicBlock:
		lengths := g.code(maxLengths, endOfBlockSymbol)
		distances := g.code(1+g.rnd.IntN(maxDistances), 0)
		g.put(maxLengths-257, 5)
		g.put(len(distances)-1, 5)
		g.put(lengthCodes-4, 4)
		for _, symbol := range codeOrder { // 4 bits for each length, without repetitions
			g.put(map[bool]int{true: 4}[symbol < repeat], 3)
		}
		for _, n := range append(lengths, distances...) {
			g.put(int(bits.Reverse8(n)>>4), 4)
		}
		g.symbols(lengths, distances)
	}
}

const endOfBlockSymbol = 256

// code returns the lengths of a random complete code for some of the symbols, with needed among them. Some have the longest
// codes.
func (g *generator) code(symbols, needed int) []uint8 {
	leaves := []uint8{0}
	for want := min(symbols, 2+g.rnd.IntN(symbols)); len(leaves) < want; {
		i := len(leaves) - 1
		if g.rnd.IntN(2) == 0 {
			i = g.rnd.IntN(len(leaves))
		}
		if leaves[i] < maxCode {
			leaves[i]++
			leaves = append(leaves, leaves[i])
		} else {
			want = min(want, len(leaves)+g.rnd.IntN(2))
		}
	}
	if len(leaves) == 1 {
		leaves[0] = 1 // one code of one bit
	}
	lengths := make([]uint8, symbols)
	for i, symbol := range g.rnd.Perm(symbols)[:len(leaves)] {
		lengths[symbol] = leaves[i]
	}
	if lengths[needed] == 0 {
		other := bytes.IndexFunc(lengths, func(n rune) bool { return n > 0 })
		lengths[needed], lengths[other] = lengths[other], 0
	}
	return lengths
}

// symbols writes random symbols with valid distances.
func (g *generator) symbols(lengths, distances []uint8) {
	lengthCode, distanceCode := reversedCodes(lengths), reversedCodes(distances)
	for range g.rnd.IntN(20_000) {
		symbol := g.rnd.IntN(maxLengths)
		if symbol == endOfBlockSymbol || lengths[symbol] == 0 {
			continue
		}
		if symbol < endOfBlockSymbol {
			g.put(lengthCode[symbol], int(lengths[symbol]))
			g.size++
			continue
		}
		d := g.rnd.IntN(min(len(distances), maxDistances))
		extra := int(distanceSymbols[d] & 0xff)
		distance := g.rnd.IntN(1 << extra)
		if distances[d] == 0 || distanceSymbols[d].base()+distance > min(g.size, historySize) {
			continue
		}
		g.put(lengthCode[symbol], int(lengths[symbol]))
		more := int(lengthSymbols[symbol] & 0xff)
		length := g.rnd.IntN(1 << more)
		g.put(length, more)
		g.put(distanceCode[d], int(distances[d]))
		g.put(distance, extra)
		g.size += lengthSymbols[symbol].base() + length
	}
	g.put(lengthCode[endOfBlockSymbol], int(lengths[endOfBlockSymbol]))
}

// reversedCodes returns the codes of symbols with their first bit lowest (RFC 1951, section 3.2.2).
func reversedCodes(lengths []uint8) []int {
	codes := make([]int, len(lengths))
	code := 0
	for n := uint8(1); n <= maxCode; n++ {
		for symbol, l := range lengths {
			if l == n {
				codes[symbol] = int(bits.Reverse16(uint16(code)) >> (16 - n))
				code++
			}
		}
		code <<= 1
	}
	return codes
}
