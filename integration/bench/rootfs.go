package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/measure"
)

// tree describes the layers of an image.
type tree struct {
	layers int
	files  int   // in each layer
	size   int64 // bytes of each layer, unpacked
	seed   uint64
	// piece is the number of bytes that each file repeats, in one layer of large files. 0 means different files.
	piece int64
	// runs adds a program to the first layer, so that a container of the image can start.
	runs bool
}

// programPath is the path of the program, and the entrypoint of all images.
const programPath = "/app"

// program returns the program of the image, or nil.
func (t tree) program(ctx context.Context) ([]byte, error) {
	if !t.runs {
		return nil, nil
	}
	var programs images.Programs
	return programs.App(ctx)
}

// options returns the options of the image. Its files are as in a Linux distribution: most are small and a few are
// large. Text and programs compress to a third, and compressed files do not.
func (t tree) options() images.Options {
	var opts images.Options
	for l := range t.layers {
		rnd := rand.New(rand.NewPCG(t.seed, uint64(l)))
		files := images.Files{}
		// As in a file system, a few files are much larger than the others.
		sizes := make([]float64, t.files)
		var sum float64
		for i := range sizes {
			u := rnd.Float64()
			sizes[i] = 1 + 200*u*u*u*u*u*u
			sum += sizes[i]
		}
		for i, s := range sizes {
			path := fmt.Sprintf("/usr/%d/share%02d/package%02d/file%04d", l, i/400, i/40%10, i)
			files[path] = mixed(rnd, int(s/sum*float64(t.size)), 4)
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

// mixed returns the content of a file: words, and once in so many times bytes that do not compress.
func mixed(rnd *rand.Rand, size, randomOnceIn int) []byte {
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

// pushed is the image of a tag in the registry.
type pushed struct {
	digest string
	top    string // name of the top snapshot
}

// push pushes a variant of the image of a tree, in an index, and returns its reference. It does not build a variant
// twice.
func (b *bench) push(ctx context.Context, repository string, t tree, variant int) (string, error) {
	tag := fmt.Sprintf("%s:v%d", repository, variant)
	if _, ok := b.pushed[tag]; ok {
		return b.reg.Ref(tag), nil
	}
	of := b.bases[t]
	if of == nil {
		var err error
		if of, err = newBase(ctx, t); err != nil {
			return "", err
		}
		b.bases[t] = of
		b.say("  %s: %d layers with %s files, %.1f MB fetched, %.1f MB unpacked", repository, t.layers, measure.Thousands(t.layers*t.files),
			float64(of.fetched())/1e6, float64(int64(t.layers)*t.size)/1e6)
	}
	img, layers, top, err := of.variant(variant)
	if err != nil {
		return "", err
	}
	for _, l := range layers {
		b.reg.PutBlob(repository, l.digest, l.packed...)
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

// fresh pushes the next variant of a tree for a side, and returns its reference. The side has no part of it.
func (b *bench) fresh(ctx context.Context, s *side, repository string, t tree) (string, error) {
	s.used[repository]++
	return b.push(ctx, repository, t, s.used[repository])
}
