package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/pkg/archive/compression"
)

// imageTimes are times of an image that are the same for both sides, in nanoseconds.
type imageTimes struct {
	// Decompression is how long containerd's decompressor needs for the largest layer.
	Decompression time.Duration `json:"decompression"`
	// Download is how long a registry that limits each connection needs to send all layers. It is 0 if there is no limit.
	Download time.Duration `json:"download,omitempty"`
}

// maxConnections is the number of connections over which one pull fetches layers at a time: the default of
// max_concurrent_downloads.
const maxConnections = 3

// imageTimes returns the times of the images of a scenario that has run.
func (c coldPull) imageTimes(b *bench) (t imageTimes, err error) {
	if t.Decompression, err = b.decompression(c.tree); err != nil {
		return t, err
	}
	if c.limited {
		seconds := float64(b.bases[c.tree].fetched()) / (maxConnections * connectionLimit)
		t.Download = time.Duration(seconds * float64(time.Second))
	}
	return t, nil
}

// decompression measures how long containerd's decompressor needs for the largest layer of a tree, if nothing else runs.
// It measures each tree once.
func (b *bench) decompression(t tree) (time.Duration, error) {
	if took, ok := b.decompressions[t]; ok {
		return took, nil
	}
	largest := slices.MaxFunc(b.bases[t].layers, func(x, y layerData) int { return cmp.Compare(x.fetched(), y.fetched()) })
	var parts []io.Reader
	for _, part := range largest.packed {
		parts = append(parts, bytes.NewReader(part))
	}
	start := time.Now()
	archive, err := compression.DecompressStream(io.MultiReader(parts...))
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, archive)
	took := time.Since(start)
	if err := errors.Join(err, archive.Close()); err != nil {
		return 0, fmt.Errorf("decompressing the largest layer: %w", err)
	}
	b.decompressions[t] = took
	return took, nil
}
