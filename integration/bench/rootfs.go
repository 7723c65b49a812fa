package main

import (
	"fmt"
	"math/rand/v2"

	"github.com/imagepin/imagepin/integration/images"
)

// tree is what the layers of an image hold.
type tree struct {
	layers int
	files  int   // in each layer
	size   int64 // bytes of each layer, unpacked
	seed   uint64
}

// options build the image: files as a Linux distribution has them. Most are small and a few are large, text and programs
// compress to a third, and what is compressed already does not.
func (t tree) options() images.Options {
	var opts images.Options
	for l := range t.layers {
		rnd := rand.New(rand.NewPCG(t.seed, uint64(l)))
		files := images.Files{}
		// Sizes have the long tail of a file system's: each next file takes a random part of a shrinking rest.
		sizes := make([]float64, t.files)
		var sum float64
		for i := range sizes {
			u := rnd.Float64()
			sizes[i] = 1 + 200*u*u*u*u*u*u
			sum += sizes[i]
		}
		for i, s := range sizes {
			path := fmt.Sprintf("/usr/%d/share%02d/package%02d/file%04d", l, i/400, i/40%10, i)
			files[path] = mixed(rnd, int(s/sum*float64(t.size)))
		}
		opts.Files = append(opts.Files, files)
	}
	return opts
}

// words are what the compressible part of a file is made of.
var words = []string{
	"function ", "return ", "library ", "the ", "of ", "\n\t", "0x00000000", "const char *", "static inline ", "version ", "license ", "error: ",
	"\x00\x00\x00\x00\x00\x00\x00\x00", "\x48\x89\xe5", "\x48\x8b\x45", "(", ")", ";\n", "\xff\xff\xff", " = ", "package ", "symbol_", "__GLIBC_",
}

// mixed is a file's content: runs of words, and of bytes that do not compress.
func mixed(rnd *rand.Rand, size int) []byte {
	b := make([]byte, 0, size+64)
	for len(b) < size {
		if rnd.IntN(4) == 0 {
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

// pushed is what a tag means in the registry.
type pushed struct {
	digest string
	top    string // the snapshot of all layers
}

// push puts a variant of the image of a tree into the registry, in an index as most images come, and returns its reference.
// One that was pushed before is not built again.
func (b *bench) push(repository string, t tree, variant int) (string, error) {
	tag := fmt.Sprintf("%s:v%d", repository, variant)
	if _, ok := b.pushed[tag]; ok {
		return b.reg.Ref(tag), nil
	}
	of := b.bases[t]
	if of == nil {
		var err error
		if of, err = newBase(t); err != nil {
			return "", err
		}
		b.bases[t] = of
		b.say("  %s: %d layers with %s files, %.1f MB fetched, %.1f MB unpacked", repository, t.layers, thousands(t.layers*t.files),
			float64(of.fetched())/1e6, float64(int64(t.layers)*t.size)/1e6)
	}
	img, top, err := of.variant(variant)
	if err != nil {
		return "", err
	}
	other, err := images.Data(images.Options{Platform: "linux/s390x"})
	if err != nil {
		return "", err
	}
	idx, err := images.Index(images.OCI, images.Entry{Image: img}, images.Entry{Image: other})
	if err != nil {
		return "", err
	}
	root, err := b.reg.Push(tag, idx)
	b.pushed[tag] = pushed{digest: root.String(), top: top}
	return b.reg.Ref(tag), err
}

// fresh is the reference of an image of a tree that this side has nothing of.
func (b *bench) fresh(s *side, repository string, t tree) (string, error) {
	s.used[repository]++
	return b.push(repository, t, s.used[repository])
}
