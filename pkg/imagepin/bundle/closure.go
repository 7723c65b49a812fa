package bundle

import (
	"encoding/json"
	"fmt"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// item is a blob that images of a lock need.
type item struct {
	desc     ocispec.Descriptor
	repo     reference.Named // of the first image that needs it
	depth    int             // of an index, 1 for a root
	children []ocispec.Descriptor
	layers   []ocispec.Descriptor // of a manifest
	keep     bool                 // the reader keeps it, see [Keep]
}

// closure determines which blobs the images of a lock need, and their order in the archive. The caller reads the indexes,
// which increase in number while it does, then the manifests.
type closure struct {
	// present reports for each manifest in an index whether it is in the bundle.
	present func(parent ocispec.Descriptor, children []ocispec.Descriptor) []bool
	// keep reports whether the reader keeps what an index lists for a platform. nil is true for all.
	keep func(ocispec.Platform) bool

	roots     []*item
	indexes   []*item
	manifests []*item
	configs   []*item
	layers    []*item
	known     map[digest.Digest]*item
	isLayer   map[digest.Digest]ocispec.Descriptor // also those that are metadata of another image
	absent    map[digest.Digest][]Absent
	size      int64 // of all blobs
	metadata  int64 // of indexes, manifests and configurations
}

// Absent is a manifest of another platform, which a bundle does not have.
type Absent struct {
	// Index is the digest of the index that lists it, Manifest is its own.
	Index, Manifest digest.Digest
	// Platform is as in platforms.FormatAll.
	Platform string
}

func newClosure(present func(ocispec.Descriptor, []ocispec.Descriptor) []bool) *closure {
	return &closure{
		present: present, known: make(map[digest.Digest]*item), isLayer: make(map[digest.Digest]ocispec.Descriptor),
		absent: make(map[digest.Digest][]Absent),
	}
}

// add adds a blob to a group, if it is new. It returns the blob.
func (c *closure) add(group *[]*item, d ocispec.Descriptor, repo reference.Named, metadata bool) (*item, error) {
	if err := checkDescriptor(d); err != nil {
		return nil, err
	}
	if i, ok := c.known[d.Digest]; ok {
		if i.desc.Size != d.Size {
			return nil, fmt.Errorf("%s has two sizes, %d and %d bytes", d.Digest, i.desc.Size, d.Size)
		}
		if metadata && images.IsIndexType(i.desc.MediaType) != images.IsIndexType(d.MediaType) {
			return nil, fmt.Errorf("%s has two media types, %.80q and %.80q", d.Digest, i.desc.MediaType, d.MediaType)
		}
		return i, nil
	}
	if metadata {
		if d.Size > maxMetadataBlob {
			return nil, fmt.Errorf("%s (%.80q) has %d bytes, the limit is %d", d.Digest, d.MediaType, d.Size, maxMetadataBlob)
		}
		if c.metadata += d.Size; c.metadata > maxMetadata {
			return nil, fmt.Errorf("indexes, manifests and configurations have more than %d bytes", maxMetadata)
		}
	}
	if c.size += d.Size; c.size > maxSize {
		return nil, fmt.Errorf("all blobs have more than %d bytes", int64(maxSize))
	}
	if len(c.known) >= maxBlobs {
		return nil, fmt.Errorf("more than %d blobs", maxBlobs)
	}
	i := &item{desc: d, repo: repo, keep: c.keep == nil}
	c.known[d.Digest] = i
	*group = append(*group, i)
	return i, nil
}

// addRoot adds the index or manifest of an image.
func (c *closure) addRoot(d ocispec.Descriptor, repo reference.Named) error {
	group := &c.indexes
	switch {
	case images.IsIndexType(d.MediaType):
	case images.IsManifestType(d.MediaType):
		group = new([]*item) // collectManifests determines the order
	default:
		return fmt.Errorf("%s has the media type %.80q, want an index or a manifest", d.Digest, d.MediaType)
	}
	i, err := c.add(group, d, repo, true)
	if err != nil {
		return err
	}
	i.keep, i.depth = true, 1
	c.roots = append(c.roots, i)
	return nil
}

// document has the fields of an index or a manifest.
type document struct {
	MediaType string               `json:"mediaType"`
	Config    json.RawMessage      `json:"config"`
	Layers    []ocispec.Descriptor `json:"layers"`
	Manifests []ocispec.Descriptor `json:"manifests"`
	FSLayers  json.RawMessage      `json:"fsLayers"`
}

// parse reads an index or a manifest. It must be what its descriptor says.
func parse(d ocispec.Descriptor, data []byte) (*document, error) {
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("%s (%s): %w", d.Digest, d.MediaType, err)
	}
	if doc.MediaType != "" && doc.MediaType != d.MediaType {
		return nil, fmt.Errorf("%s has the media type %.80q, but its descriptor %.80q", d.Digest, doc.MediaType, d.MediaType)
	}
	isIndex := images.IsIndexType(d.MediaType)
	if isIndex && (len(doc.Config) > 0 || len(doc.Layers) > 0 || len(doc.FSLayers) > 0) || !isIndex && len(doc.Manifests) > 0 {
		return nil, fmt.Errorf("%s is not what its descriptor says, %.80q", d.Digest, d.MediaType)
	}
	return &doc, nil
}

// addIndex adds what an index of the closure lists.
func (c *closure) addIndex(i *item, data []byte) error {
	doc, err := parse(i.desc, data)
	if err != nil {
		return err
	}
	for _, d := range doc.Manifests {
		if err := checkDescriptor(d); err != nil {
			return fmt.Errorf("index %s: %w", i.desc.Digest, err)
		}
	}
	present := c.present(i.desc, doc.Manifests)
	for n, d := range doc.Manifests {
		if !present[n] {
			c.absent[d.Digest] = append(c.absent[d.Digest], Absent{i.desc.Digest, d.Digest, formatPlatform(d.Platform)})
			continue
		}
		i.children = append(i.children, d)
		if !images.IsIndexType(d.MediaType) {
			continue
		}
		child, err := c.add(&c.indexes, d, i.repo, true)
		if err != nil {
			return fmt.Errorf("index %s: %w", i.desc.Digest, err)
		}
		if child.depth == 0 {
			child.depth = i.depth + 1
		}
		if child.depth > maxDepth {
			return fmt.Errorf("index %s: indexes are nested more than %d deep", d.Digest, maxDepth)
		}
		child.keep = child.keep || i.keep && c.keeps(d.Platform)
	}
	return nil
}

func (c *closure) keeps(p *ocispec.Platform) bool { return c.keep == nil || p == nil || c.keep(*p) }

// collectManifests determines the manifests, after all indexes were read.
func (c *closure) collectManifests() error {
	walked := make(map[digest.Digest]bool)
	for _, r := range c.roots {
		if images.IsManifestType(r.desc.MediaType) {
			if !walked[r.desc.Digest] {
				walked[r.desc.Digest] = true
				c.manifests = append(c.manifests, r)
			}
			continue
		}
		if err := c.walk(r, walked); err != nil {
			return err
		}
	}
	return nil
}

func (c *closure) walk(i *item, walked map[digest.Digest]bool) error {
	if walked[i.desc.Digest] {
		return nil
	}
	walked[i.desc.Digest] = true
	for _, d := range i.children {
		if child, ok := c.known[d.Digest]; ok && images.IsIndexType(d.MediaType) {
			if err := c.walk(child, walked); err != nil {
				return err
			}
			continue
		}
		if !images.IsManifestType(d.MediaType) {
			continue // collectLayers adds it
		}
		child, err := c.add(&c.manifests, d, i.repo, true)
		if err != nil {
			return fmt.Errorf("index %s: %w", i.desc.Digest, err)
		}
		child.keep = child.keep || i.keep && c.keeps(d.Platform)
	}
	return nil
}

// addManifest adds the configuration of a manifest of the closure, and reads its layers.
func (c *closure) addManifest(i *item, data []byte) error {
	doc, err := parse(i.desc, data)
	if err != nil {
		return err
	}
	var config ocispec.Descriptor
	if len(doc.Config) == 0 {
		return fmt.Errorf("manifest %s has no configuration", i.desc.Digest)
	}
	if err := json.Unmarshal(doc.Config, &config); err != nil {
		return fmt.Errorf("manifest %s: %w", i.desc.Digest, err)
	}
	child, err := c.add(&c.configs, config, i.repo, true)
	if err != nil {
		return fmt.Errorf("manifest %s: configuration: %w", i.desc.Digest, err)
	}
	child.keep = child.keep || i.keep
	i.layers = doc.Layers
	return nil
}

// collectLayers determines the layers, after all manifests were read. It skips those in omitted. It fails if one of them is not
// a layer, or is metadata too.
func (c *closure) collectLayers(omitted []digest.Digest) error {
	skip := make(map[digest.Digest]bool, len(omitted))
	for _, d := range omitted {
		if _, ok := c.known[d]; ok {
			return fmt.Errorf("%s is omitted, but it is an index, a manifest or a configuration", d)
		}
		skip[d] = true
	}
	listed := func(i *item, layers []ocispec.Descriptor) error {
		for _, d := range layers {
			if err := checkDescriptor(d); err != nil {
				return fmt.Errorf("%s: %w", i.desc.Digest, err)
			}
			if first, ok := c.isLayer[d.Digest]; !ok {
				c.isLayer[d.Digest] = d
			} else if first.Size != d.Size {
				return fmt.Errorf("%s: %s has two sizes, %d and %d bytes", i.desc.Digest, d.Digest, first.Size, d.Size)
			}
			if skip[d.Digest] {
				continue
			}
			if _, err := c.add(&c.layers, d, i.repo, false); err != nil {
				return fmt.Errorf("%s: %w", i.desc.Digest, err)
			}
		}
		return nil
	}
	for _, m := range c.manifests {
		if err := listed(m, m.layers); err != nil {
			return err
		}
	}
	for _, i := range c.indexes { // for example a cache of BuildKit
		var others []ocispec.Descriptor
		for _, d := range i.children {
			if !images.IsIndexType(d.MediaType) && !images.IsManifestType(d.MediaType) {
				others = append(others, d)
			}
		}
		if err := listed(i, others); err != nil {
			return err
		}
	}
	for d := range skip {
		if _, ok := c.isLayer[d]; !ok {
			return fmt.Errorf("%s is omitted, but no image has this layer", d)
		}
	}
	for d := range c.absent {
		if _, ok := c.known[d]; ok {
			return fmt.Errorf("%s is absent, but it is needed", d)
		}
	}
	return nil
}

// formatPlatform returns the platform of a descriptor, as in platforms.FormatAll.
func formatPlatform(p *ocispec.Platform) string {
	if p == nil {
		return "unknown"
	}
	return platforms.FormatAll(platforms.Normalize(*p))
}
