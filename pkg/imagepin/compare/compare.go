package compare

import (
	"context"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Change is how something differs between two digests.
type Change string

// The changes.
const (
	Added   Change = "added"
	Removed Change = "removed"
	Changed Change = "changed"
	Same    Change = "same"
)

// Platform is what has changed for one platform.
type Platform struct {
	// Name is the platform, as in linux/arm64.
	Name   string
	Change Change
	// From and To are the digests of the manifests; empty if there is none.
	From, To digest.Digest
	// Compared reports that the images were read. The fields below are only set then.
	Compared bool
	// FromSize and ToSize are the sizes of the images, as stored in the registry, in bytes.
	FromSize, ToSize int64
	Layers           []Layer
	Config           []Field
}

// Layer is a layer of one or both images.
type Layer struct {
	Change Change
	Digest digest.Digest
	Size   int64 // as stored in the registry, in bytes
}

// Compare compares two roots. It reads the manifests and configurations only of platforms that wanted accepts. The platforms
// are those of to in the order of its index, and then those that only from has.
func (r *Reader) Compare(ctx context.Context, from, to ocispec.Descriptor, wanted func(ocispec.Platform) bool) ([]Platform, error) {
	before, err := r.manifestsOf(ctx, from)
	if err != nil {
		return nil, err
	}
	after, err := r.manifestsOf(ctx, to)
	if err != nil {
		return nil, err
	}
	names := slices.Clone(after.order)
	for _, name := range before.order {
		if _, ok := after.found[name]; !ok {
			names = append(names, name)
		}
	}
	all := make([]Platform, len(names))
	for i, name := range names {
		p := &all[i]
		a, b := before.found[name], after.found[name]
		*p = Platform{Name: name, Change: changeOf(a.Digest, b.Digest), From: a.Digest, To: b.Digest}
		spec := b.Platform
		if spec == nil {
			spec = a.Platform
		}
		if !wanted(*spec) {
			continue
		}
		if err := r.comparePlatform(ctx, p, a, b); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func changeOf(from, to digest.Digest) Change {
	switch {
	case from == to:
		return Same
	case from == "":
		return Added
	case to == "":
		return Removed
	}
	return Changed
}

func (r *Reader) comparePlatform(ctx context.Context, p *Platform, from, to ocispec.Descriptor) error {
	var before, after image
	for _, side := range []struct {
		desc ocispec.Descriptor
		img  *image
	}{{from, &before}, {to, &after}} {
		if side.desc.Digest == "" {
			continue
		}
		img, err := r.image(ctx, side.desc)
		if err != nil {
			return err
		}
		img.size = sizeOf(side.desc, img.manifest)
		*side.img = img
	}
	p.Compared, p.FromSize, p.ToSize = true, before.size, after.size
	p.Layers = compareLayers(before.manifest.Layers, after.manifest.Layers)
	p.Config = compareConfig(before.config.Config, after.config.Config)
	return nil
}

// sizeOf returns the size of an image, as its manifest declares it.
func sizeOf(desc ocispec.Descriptor, m ocispec.Manifest) int64 {
	size := imagepin.AddSize(desc.Size, m.Config.Size)
	for _, l := range m.Layers {
		size = imagepin.AddSize(size, l.Size)
	}
	return size
}

// compareLayers returns the layers that were removed, and then those of to. An image can have a layer several times.
func compareLayers(from, to []ocispec.Descriptor) []Layer {
	before := make(map[digest.Digest]int)
	for _, l := range from {
		before[l.Digest]++
	}
	var kept []Layer
	for _, l := range to {
		change := Added
		if before[l.Digest] > 0 {
			change = Same
			before[l.Digest]--
		}
		kept = append(kept, Layer{change, l.Digest, l.Size})
	}
	var all []Layer
	for _, l := range slices.Backward(from) {
		if before[l.Digest] > 0 { // the last ones of equal layers are those that were removed
			before[l.Digest]--
			all = append(all, Layer{Removed, l.Digest, l.Size})
		}
	}
	slices.Reverse(all)
	return append(all, kept...)
}
