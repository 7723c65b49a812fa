package bundle

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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
	blob *item // nil for data
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
	description := Description{Platforms: platformStrings(o.Platforms)}
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
	description.Absent = c.absentDigests()
	if err := c.collectLayers(slices.Values(description.Omitted)); err != nil {
		return nil, err
	}
	p := &plan{closure: c}
	if err := p.build(o.Lock, lockYAML, description, g.data); err != nil {
		return nil, err
	}
	p.result = Result{
		Lock: description.Lock, Images: len(c.roots), Blobs: c.number, BlobsSize: c.size, Size: p.size, Absent: c.allAbsent(),
		Omitted: len(description.Omitted), Platforms: description.Platforms, Since: description.Since,
	}
	for _, d := range description.Omitted {
		if _, of, ok := c.find(d); ok {
			p.result.OmittedSize += of.size
		}
	}
	for _, n := range c.roots {
		if images.IsIndexType(c.desc(n).MediaType) && len(c.childrenOf(n)) == 0 {
			p.result.Unmatched = append(p.result.Unmatched, c.repo(n).String())
		}
	}
	return p, nil
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
	c := p.closure
	rootOf := func(d digest.Digest) ocispec.Descriptor {
		n, _, _ := c.find(d)
		return c.desc(n)
	}
	var index bytes.Buffer
	if err := writeIndexJSON(&index, l, rootOf, own); err != nil {
		return err
	}
	if index.Len() > maxIndexJSON {
		return fmt.Errorf("%s has %d bytes, the limit is %d", ocispec.ImageIndexFile, index.Len(), maxIndexJSON)
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{ocispec.ImageLayoutFile, layoutFile}, {ocispec.ImageIndexFile, index.Bytes()}, {blobName(own.Digest), manifest},
		{blobName(configDesc.Digest), config}, {blobName(lockDesc.Digest), lockYAML},
	} {
		if err := p.add(f.name, segment{size: int64(len(f.data)), data: f.data}); err != nil {
			return err
		}
	}
	for _, group := range [][]uint32{c.indexes, c.manifests} {
		for _, n := range group {
			d := c.desc(n)
			if err := p.add(blobName(d.Digest), segment{size: d.Size, data: data[d.Digest]}); err != nil {
				return err
			}
		}
	}
	for _, group := range [][]uint32{c.configs, c.layers} {
		for _, n := range group {
			i := c.item(n)
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
