package images

import (
	"fmt"
	"math/rand/v2"
)

// Tree describes an image whose files are as in a Linux distribution: most are small and a few are large. Text and
// programs compress to a third, and compressed files do not.
type Tree struct {
	Layers int
	Files  int   // in each layer
	Size   int64 // bytes of each layer, unpacked
	Seed   uint64
}

// Options returns the options of the image.
func (t Tree) Options() Options {
	var opts Options
	for l := range t.Layers {
		rnd := rand.New(rand.NewPCG(t.Seed, uint64(l)))
		files := Files{}
		// As in a file system, a few files are much larger than the others.
		sizes := make([]float64, t.Files)
		var sum float64
		for i := range sizes {
			u := rnd.Float64()
			sizes[i] = 1 + 200*u*u*u*u*u*u
			sum += sizes[i]
		}
		for i, s := range sizes {
			path := fmt.Sprintf("/usr/%d/share%02d/package%02d/file%04d", l, i/400, i/40%10, i)
			files[path] = Mixed(rnd, int(s/sum*float64(t.Size)), 4)
		}
		opts.Files = append(opts.Files, files)
	}
	return opts
}

// words are the compressible content of a file.
var words = []string{
	"function ", "return ", "library ", "the ", "of ", "\n\t", "0x00000000", "const char *", "static inline ", "version ", "license ", "error: ",
	"\x00\x00\x00\x00\x00\x00\x00\x00", "\x48\x89\xe5", "\x48\x8b\x45", "(", ")", ";\n", "\xff\xff\xff", " = ", "package ", "symbol_", "__GLIBC_",
}

// Text returns text of a size: lines of words, of which some are frequent and most are rare, as in logs and
// documents.
func Text(rnd *rand.Rand, size int) []byte {
	const vocabulary, line = 20_000, 12 // words
	known := make([][]byte, vocabulary)
	for i := range known {
		for range 2 + rnd.IntN(9) {
			known[i] = append(known[i], byte('a'+rnd.IntN(26)))
		}
	}
	next := rand.NewZipf(rnd, 1.1, 4, vocabulary-1)
	b := make([]byte, 0, size+line)
	for n := 1; len(b) < size; n++ {
		b = append(b, known[next.Uint64()]...)
		if n%line == 0 {
			b = append(b, '\n')
		} else {
			b = append(b, ' ')
		}
	}
	return b[:size]
}

// Mixed returns content of a size: words, and once in so many times 16 bytes that do not compress.
func Mixed(rnd *rand.Rand, size, randomOnceIn int) []byte {
	b := make([]byte, 0, size+64)
	for len(b) < size {
		if rnd.IntN(randomOnceIn) == 0 {
			for range 16 {
				b = append(b, byte(rnd.Uint32()))
			}
			continue
		}
		for range 8 {
			b = append(b, words[rnd.IntN(len(words))]...)
		}
	}
	return b[:size]
}
