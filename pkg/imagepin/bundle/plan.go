package bundle

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// plan is an archive whose content is known before it is written, except for that of configurations and layers.
type plan struct {
	segments []segment
	size     int64 // of the archive
	closure  *closure
	result   Result
}

// segment is a part of an archive: data, or a blob that has to be fetched.
type segment struct {
	at   int64 // in the archive
	size int64
	data []byte
	blob *item
}

// newPlan reads all indexes and manifests that a bundle needs.
func newPlan(ctx context.Context, o Options, source Source) (*plan, error) {
	lockYAML, err := o.Lock.Marshal()
	if err != nil {
		return nil, err
	}
	if len(lockYAML) > lock.MaxSize {
		return nil, fmt.Errorf("the lock has %d bytes, the limit is %d", len(lockYAML), lock.MaxSize)
	}
	g := &gatherer{source: source, data: make(map[digest.Digest][]byte)}
	c, err := g.gather(ctx, o.Lock, o.Platforms)
	if err != nil {
		return nil, err
	}
	description := Description{Platforms: PlatformStrings(o.Platforms)}
	lockLayer := describe(lock.MediaType, lockYAML)
	description.Lock = lockLayer.Digest
	if o.Since != nil {
		if description.Since, err = o.Since.Digest(); err != nil {
			return nil, err
		}
		earlier, err := g.gather(ctx, o.Since, o.Platforms)
		if err != nil {
			return nil, fmt.Errorf("the earlier lock: %w", err)
		}
		description.Omitted = sinceLayers(c, earlier)
	}
	if absent := slices.Sorted(maps.Keys(c.absent)); len(absent) > 0 {
		description.Absent = absent
	}
	if err := c.collectLayers(description.Omitted); err != nil {
		return nil, err
	}
	p := &plan{closure: c}
	if err := p.build(o.Lock, lockYAML, description, g.data); err != nil {
		return nil, err
	}
	p.result = Result{
		Lock: description.Lock, Images: len(c.roots), Blobs: len(c.known), BlobsSize: c.size, Size: p.size, Absent: absentOf(c),
		Omitted: len(description.Omitted), Platforms: description.Platforms, Since: description.Since,
	}
	for _, d := range description.Omitted {
		p.result.OmittedSize += c.isLayer[d].desc.Size
	}
	for _, r := range c.roots {
		if images.IsIndexType(r.desc.MediaType) && len(r.children) == 0 {
			p.result.Unmatched = append(p.result.Unmatched, r.repo.String())
		}
	}
	return p, nil
}

// absentOf returns what is absent, ordered by the digest of the manifest.
func absentOf(c *closure) []Absent {
	var all []Absent
	for _, d := range slices.Sorted(maps.Keys(c.absent)) {
		all = append(all, c.absent[d]...)
	}
	return all
}

// build determines the segments of the archive.
func (p *plan) build(l *lock.Lock, lockYAML []byte, description Description, data map[digest.Digest][]byte) error {
	config, err := json.Marshal(description)
	if err != nil {
		return err
	}
	if len(config) > maxMetadataBlob {
		return fmt.Errorf("%d omitted layers and %d absent manifests are too many", len(description.Omitted), len(description.Absent))
	}
	configDesc, lockDesc := describe(DescriptionMediaType, config), describe(lock.MediaType, lockYAML)
	manifest, err := ownManifest(configDesc, lockDesc)
	if err != nil {
		return err
	}
	own := describe(ocispec.MediaTypeImageManifest, manifest)
	roots := make(map[digest.Digest]ocispec.Descriptor)
	for _, r := range p.closure.roots {
		roots[r.desc.Digest] = r.desc
	}
	index, err := indexJSON(l, roots, own)
	if err != nil {
		return err
	}
	if len(index) > maxIndexJSON {
		return fmt.Errorf("%s has %d bytes, the limit is %d", ocispec.ImageIndexFile, len(index), maxIndexJSON)
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{ocispec.ImageLayoutFile, layoutFile}, {ocispec.ImageIndexFile, index}, {blobName(own.Digest), manifest},
		{blobName(configDesc.Digest), config}, {blobName(lockDesc.Digest), lockYAML},
	} {
		if err := p.add(f.name, segment{size: int64(len(f.data)), data: f.data}); err != nil {
			return err
		}
	}
	for _, group := range [][]*item{p.closure.indexes, p.closure.manifests} {
		for _, i := range group {
			if err := p.add(blobName(i.desc.Digest), segment{size: i.desc.Size, data: data[i.desc.Digest]}); err != nil {
				return err
			}
		}
	}
	for _, group := range [][]*item{p.closure.configs, p.closure.layers} {
		for _, i := range group {
			if err := p.add(blobName(i.desc.Digest), segment{size: i.desc.Size, blob: i}); err != nil {
				return err
			}
		}
	}
	p.append(segment{size: int64(len(trailer)), data: trailer})
	return nil
}

// add adds an entry.
func (p *plan) add(name string, content segment) error {
	h, err := header(name, content.size)
	if err != nil {
		return err
	}
	p.append(segment{size: int64(len(h)), data: h})
	p.append(content)
	p.append(segment{size: padding(content.size), data: trailer[:padding(content.size)]})
	return nil
}

func (p *plan) append(s segment) {
	if s.size == 0 && s.blob == nil {
		return
	}
	s.at = p.size
	p.size += s.size
	p.segments = append(p.segments, s)
}

// from returns the segments that end after an offset.
func (p *plan) from(at int64) []segment {
	n := sort.Search(len(p.segments), func(n int) bool { return p.segments[n].at+p.segments[n].size > at })
	return p.segments[n:]
}
