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

	"github.com/imagepin/imagepin/internal/gunzip"
)

// imageTimes are times of an image that do not depend on a pull, in nanoseconds.
type imageTimes struct {
	// Stock and Ours are how long the decompressors of both sides need for the largest layer.
	Stock time.Duration `json:"stock"`
	Ours  time.Duration `json:"ours"`
	// Download is how long a registry that limits each connection needs to send all layers. It is 0 if there is no limit.
	Download time.Duration `json:"download,omitempty"`
}

// maxConnections is the number of connections over which one pull fetches layers at a time: the default of
// max_concurrent_downloads.
const maxConnections = 3

// imageTimes returns the times of the images of a scenario that has run.
func (c coldPull) imageTimes(b *bench) (imageTimes, error) {
	t, err := b.decompression(c.tree)
	if err != nil {
		return t, err
	}
	if c.limited {
		seconds := float64(b.bases[c.tree].fetched()) / (maxConnections * connectionLimit)
		t.Download = time.Duration(seconds * float64(time.Second))
	}
	return t, nil
}

// decompression measures how long the decompressors need for the largest layer of a tree, if nothing else runs. It measures
// each tree once.
func (b *bench) decompression(t tree) (times imageTimes, err error) {
	if times, ok := b.decompressions[t]; ok {
		return times, nil
	}
	largest := slices.MaxFunc(b.bases[t].layers, func(x, y layerData) int { return cmp.Compare(x.fetched(), y.fetched()) })
	if times.Stock, err = largest.decompress(decompressStream); err == nil {
		times.Ours, err = largest.decompress(decompressOurs(t))
	}
	if err != nil {
		return times, fmt.Errorf("decompressing the largest layer: %w", err)
	}
	b.decompressions[t] = times
	return times, nil
}

func decompressStream(r io.Reader) (io.ReadCloser, error) { return compression.DecompressStream(r) }

// decompressOurs returns the decompressor that imagepin uses for a tree.
func decompressOurs(t tree) func(io.Reader) (io.ReadCloser, error) {
	if t.zstd {
		return decompressStream
	}
	return func(r io.Reader) (io.ReadCloser, error) {
		z, err := gunzip.NewReader(r)
		return io.NopCloser(z), err
	}
}

// decompress returns how long a decompressor needs for the layer.
func (d layerData) decompress(with func(io.Reader) (io.ReadCloser, error)) (time.Duration, error) {
	var parts []io.Reader
	for _, part := range d.packed {
		parts = append(parts, bytes.NewReader(part))
	}
	start := time.Now()
	archive, err := with(io.MultiReader(parts...))
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, archive)
	took := time.Since(start)
	return took, errors.Join(err, archive.Close())
}
