package images

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Data builds an image with the files of the options and no program. It cannot run, and is fast to pull.
func Data(opts Options) (v1.Image, error) {
	return build(opts.withDefaults(), "/none", nil, opts.Files)
}

// DataIndex builds an index with one Data image per platform. The other options of all images are opts.
func DataIndex(opts Options, platforms ...string) (v1.ImageIndex, error) {
	var entries []Entry
	for _, p := range platforms {
		o := opts.withDefaults()
		o.Platform = p
		img, err := Data(o)
		if err != nil {
			return nil, err
		}
		entries = append(entries, Entry{Image: img})
	}
	return Index(opts.withDefaults().Format, entries...)
}
