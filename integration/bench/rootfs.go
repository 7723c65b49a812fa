package main

import (
	"context"
	"fmt"

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
	piece   int64
	content fileContent
	// zstd compresses the layers with zstd instead of gzip.
	zstd bool
	// runs adds a program to the first layer, so that a container of the image can start.
	runs bool
}

// fileContent is what the files of a tree have.
type fileContent int

const (
	mixedFiles  fileContent = iota // text, programs and compressed files, as in a Linux distribution
	textFiles                      // only with piece
	randomFiles                    // it does not compress
)

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

// options returns the options of the image.
func (t tree) options() images.Options {
	if t.content == randomFiles {
		var opts images.Options
		for i := range t.layers {
			opts.Random = append(opts.Random, images.Random{Files: t.files, Size: t.size, Seed: t.seed<<8 + uint64(i)})
		}
		return opts
	}
	return images.Tree{Layers: t.layers, Files: t.files, Size: t.size, Seed: t.seed}.Options()
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
